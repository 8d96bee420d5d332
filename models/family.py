"""What a family of models gives: which files are its own, and how its graph is built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from flm.core.json_file import read_json_object
from flm.core.picture import Sight
from flm.errors import BadModelFile, UnsupportedModel
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.q4nx import WEIGHTS, Q4nxFolder
from flm.graph.weights.safetensors import SafetensorsFolder
from flm.memory.layout import MemoryLayout

Source = GgufFile | SafetensorsFolder

# GGUF's general.architecture, or config.json's model_type -> the folder beside this file.
FAMILIES: Mapping[str, str] = {
    "bert": "bert",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "gemma4": "gemma4",
    "gemma4_text": "gemma4",
    "gpt-oss": "gptoss",
    "gpt_oss": "gptoss",
    "granite": "granite",
    "lfm2": "lfm2",
    "llama": "llama",
    "minicpmv4_6": "qwen35",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2_5_vl": "qwen25vl",
    "qwen2vl": "qwen25vl",
    "qwen3": "qwen3",
    "qwen35": "qwen35",
    "qwen35moe": "qwen35moe",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_5_text": "qwen35",
    "qwen3_vl": "qwen3vl",
    "qwen3vl": "qwen3vl",
    "smollm3": "smollm3",
}


AS_THEY_ARE = ("bert",)  # models whose floats are not rounded
# Families that take rows of pictures -> those whose tower.py may make them.
SEEING: Mapping[str, tuple[str, ...]] = {
    "gemma3": ("gemma3",),
    "qwen25vl": ("qwen25vl",),
    "qwen35": ("qwen35", "minicpmv"),
    "qwen35moe": ("qwen35",),
    "qwen3vl": ("qwen35",),
}


@dataclass(frozen=True, slots=True)
class Emitted:
    """What the graph says about the model. Where `context_length_short` is set, contexts up to it
    want a graph of their own, emitted with that Numerics.context_length. `notes` are for people.
    """

    layout: MemoryLayout
    vocabulary: int
    context_length: int
    context_length_short: int | None = None
    notes: frozenset[str] = frozenset()
    width: int = 0  # of the rows that stand for pictures, where it takes them


class Family(Protocol):
    """A folder's graph.py: emits the whole model into `emitter`."""

    emit: Callable[[Source, Emitter, Numerics], Emitted]


class Seen(Protocol):
    """What compiling asks of a tower's shape: how it sees, how wide its rows are, and what a
    patch takes while it is at work.
    """

    @property
    def sight(self) -> Sight: ...
    @property
    def out_width(self) -> int: ...
    @property
    def patch_values(self) -> int: ...


class Towers(Protocol):
    """A folder's tower.py: for its own kind of picture tower, in a folder or an mmproj file."""

    has: Callable[[Source], bool]
    shape: Callable[[Source], Seen]  # raises BadModelFile, UnsupportedModel
    emit: Callable[[Source, Emitter, Numerics], None]  # all of it, into the emitter


def open_source(path: Path) -> Source:
    """A .gguf file, or a folder of Hugging Face's or FastFlowLM's. Raises BadModelFile or
    UnsupportedModel.
    """
    if path.is_dir() and (path / WEIGHTS).exists():
        return Q4nxFolder(path)
    if path.is_dir():
        kind = read_json_object(path / "config.json").get("model_type")
        return SafetensorsFolder(path, quantized=kind not in AS_THEY_ARE)
    if not path.exists():
        raise BadModelFile(f"{path} does not exist", fix="check the path")
    return GgufFile(path)


def architecture(source: Source) -> str:
    if isinstance(source, GgufFile):
        return source.text("general.architecture")
    name: Any = source.config.get("model_type")
    if not isinstance(name, str):
        raise BadModelFile(f"{source.path}/config.json is missing, or has no model_type")
    return name


def family_of(source: Source) -> tuple[str, Family]:
    """(name, the family) that builds this source."""
    name = architecture(source)
    if name not in FAMILIES:
        raise UnsupportedModel(
            f"{source.path} is of architecture {name!r}, which flm does not build",
            fix=f"architectures built: {', '.join(sorted(FAMILIES))}; flm list shows models",
        )
    return FAMILIES[name], import_module(f"flm.models.{FAMILIES[name]}.graph")


def towers_of(family: str) -> tuple[Towers, ...]:
    """The kinds that may stand before this family; none where it reads text only."""
    return tuple(import_module(f"flm.models.{name}.tower") for name in SEEING.get(family, ()))

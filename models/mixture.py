"""The sizes of a mixture of experts, as its file states them, checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flm.errors import BadModelFile
from flm.graph.weights.gguf import GgufFile
from flm.models.family import Source
from flm.models.shape import WIDTH_MAX, contradiction

EXPERTS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Mixture:
    experts: int
    used: int  # by each token
    width: int  # of an expert's MLP
    shared_width: int = 0  # of the expert that every token uses; 0: there is none


def mixture_of(source: Source, config: Mapping[str, Any] | None = None) -> Mixture:
    """`config` stands for a folder's config.json where that holds the sizes elsewhere. Raises
    BadModelFile.
    """
    if isinstance(source, GgufFile):
        mixture = _from_gguf(source)
    else:
        mixture = _from_config(source.config if config is None else config)
    if not 0 < mixture.used <= mixture.experts <= EXPERTS_MAX:
        raise contradiction(source.path, f"{mixture.used} experts of {mixture.experts} a token")
    if not 0 < mixture.width <= WIDTH_MAX or not 0 <= mixture.shared_width <= WIDTH_MAX:
        raise contradiction(source.path, f"its experts have sizes {mixture}")
    return mixture


def _from_gguf(source: GgufFile) -> Mixture:
    architecture = source.text("general.architecture")

    def number(key: str, default: float | None = None) -> int:
        return int(source.number(f"{architecture}.{key}", default))

    return Mixture(
        experts=number("expert_count"),
        used=number("expert_used_count"),
        width=number("expert_feed_forward_length"),
        shared_width=number("expert_shared_feed_forward_length", 0),
    )


def _from_config(config: Mapping[str, Any]) -> Mixture:
    try:
        return Mixture(
            experts=int(config.get("num_experts") or config["num_local_experts"]),
            used=int(config["num_experts_per_tok"]),
            width=int(config.get("moe_intermediate_size") or config["intermediate_size"]),
            shared_width=int(config.get("shared_expert_intermediate_size") or 0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadModelFile(f"config.json: {error!r}") from error

"""Rotary positions: the angle of each pair of a head's values a position, as each rule scales it.

The rules are those of transformers, modeling_rope_utils. A GGUF file that was converted by one of
them may hold its outcome instead, as divisors.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from flm.devices.device import Array
from flm.errors import BadModelFile, UnsupportedModel
from flm.graph.weights.blocks import Matrix
from flm.models.shape import Shape
from flm.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Rope:
    frequencies: Array  # [rotary_width / 2], radians a position
    magnitude: float = 1.0  # of cosines and sines


def rope_of(w: Weights, shape: Shape) -> Rope:
    """Raises BadModelFile, or UnsupportedModel for a rule that is not built."""
    plain = plain_frequencies(shape)
    if w.has("rope_divisors"):
        with np.errstate(divide="ignore"):
            return checked(w, Rope(np.asarray(plain / w.vector("rope_divisors"))))
    scaling = shape.rope_scaling
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    rules = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}
    if not isinstance(kind, str) or kind not in rules:
        raise UnsupportedModel(f"rope scaling {kind!r} is not built", fix="take another model")
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            return checked(w, rules[kind](plain, scaling, shape))
    except (KeyError, TypeError, ValueError) as error:
        raise BadModelFile(f"rope scaling {kind} has no number for {error}") from error


def plain_frequencies(shape: Shape) -> Array:
    width = shape.rotary_width
    frequencies: Array = shape.rope_base ** (-np.arange(0, width, 2) / width)
    return frequencies


def sections_of(said: object, shape: Shape) -> tuple[int, ...]:
    """Of the pairs of a head's values, how many turn by when a token comes, by its row and by its
    column in a picture; without a word, thirds as even as can be, the first ones larger.
    """
    pairs = shape.rotary_width // 2
    if isinstance(said, list) and all(isinstance(each, int) and each >= 0 for each in said):
        given = tuple(said[:3])
        if len(given) == 3 and sum(given) == pairs:
            return given
    return tuple((pairs + 2 - axis) // 3 for axis in range(3))


def checked(w: Weights, rope: Rope) -> Rope:
    """Raises BadModelFile where an angle is not a number."""
    usable = (rope.frequencies > 0) & np.isfinite(rope.frequencies)
    if not usable.all() or not 0 < rope.magnitude < np.inf:
        raise BadModelFile(f"{w.source.path}: rope scaling gives angles that are not numbers")
    return rope


def half_split(w: Weights, name: str, layer: int, heads: int) -> Matrix:
    """Query or key rows as rotary positions want them; llama.cpp's converter interleaves the two
    halves of each head for llama and its kin.
    """
    matrix = w.matrix(name, layer)
    if not w.is_gguf:
        return matrix
    order = np.arange(matrix.shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    return matrix.reordered(order)


def _default(plain: Array, scaling: dict[str, Any], shape: Shape) -> Rope:
    return Rope(plain)


def _linear(plain: Array, scaling: dict[str, Any], shape: Shape) -> Rope:
    return Rope(np.asarray(plain / np.float64(scaling["factor"])))


def _llama3(plain: Array, scaling: dict[str, Any], shape: Shape) -> Rope:
    """Long waves are slowed by `factor`, short ones are not."""
    keys = ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    original, low, high = (np.float64(scaling[key]) for key in keys)
    turns = original * plain / (2 * np.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return Rope(np.asarray(plain * (share + (1 - share) / np.float64(scaling["factor"]))))


def _yarn(plain: Array, scaling: dict[str, Any], shape: Shape) -> Rope:
    """As llama3's, over a range of pairs rather than of waves; and attention is sharpened."""
    factor = float(scaling["factor"])
    original = float(scaling["original_max_position_embeddings"])
    width, base = shape.rotary_width, shape.rope_base

    def pair(turns: float) -> float:
        """Which pair of values turns this often over the original context."""
        return float(width * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base)))

    low = pair(float(scaling.get("beta_fast") or 32))
    high = pair(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    slowed = np.clip((np.arange(len(plain)) - low) / (max(high - low, 0.001)), 0, 1)
    magnitude = 0.1 * np.log(factor) + 1 if factor > 1 else 1.0
    magnitude = float(scaling.get("attention_factor") or magnitude * scaling.get("prefactor", 1.0))
    return Rope(np.asarray(plain * (1 - slowed + slowed / factor)), magnitude)

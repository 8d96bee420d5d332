"""Golden vectors: what a design is given, from a seed, and what its reference makes of that.

npu_kernels/<folder>/golden.py has golden(design, parameters, random). Nothing is stored: the same
seed gives the same bytes, and numpy is all it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from npu_kernels.bf16 import from_bits
from npu_kernels.manifest import manifest

Array = np.ndarray[Any, np.dtype[Any]]

SEED = 5


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """What a host buffer holds afterwards, from its first byte on. `error_max`: None is the
    manifest's. `bfloat16`: how its bytes are read, instead of as float32.
    """

    name: str
    exact: Array
    error_max: float | None = None
    bfloat16: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Golden:
    """`before`: the design's host buffers in order, those that it only writes, too."""

    before: Sequence[Array]
    after: Sequence[Expected]
    values: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Closeness:
    """`error`: the largest, of the largest magnitude there is; inf where it is no number."""

    name: str
    error: float
    cosine: float
    fine: bool


def golden(folder: str, design: str, parameters: Mapping[str, int], seed: int = SEED) -> Golden:
    module = import_module(f"npu_kernels.{folder}.golden")
    made: Golden = module.golden(design, parameters, np.random.default_rng(seed))
    return made


def closeness(folder: str, expected: Expected, found: Array) -> Closeness:
    """`found`: the bytes of the host buffer."""
    bounds = manifest(Path(__file__).parent / folder)
    item = 2 if expected.bfloat16 else 4
    data = np.ascontiguousarray(found).reshape(-1).view(np.uint8)[: item * expected.exact.size]
    got = from_bits(data.view(np.uint16)) if expected.bfloat16 else data.view(np.float32)
    got, exact = got.astype(np.float64), expected.exact.astype(np.float64).ravel()
    error_max = bounds.error_max if expected.error_max is None else expected.error_max
    cosine_min = bounds.cosine_min if expected.error_max is None else 1 - expected.error_max
    if not np.isfinite(got).all():
        return Closeness(expected.name, float("inf"), 0.0, False)
    largest = max(float(np.abs(exact).max()), float(np.finfo(np.float32).tiny))
    error = float(np.abs(got - exact).max()) / largest
    length = float(np.sqrt((got @ got) * (exact @ exact)))
    cosine = float(got @ exact) / length if length else float(not exact.any())
    return Closeness(expected.name, error, cosine, error <= error_max and cosine >= cosine_min)


def together(values: Array, tokens: int, apart: int, count: int) -> Array:
    """[tokens, count]: `count` of every `apart` values."""
    places = apart * np.arange(tokens)[:, None] + np.arange(count)
    return np.asarray(values[places])


def spread(random: np.random.Generator, *shape: int) -> Array:
    """Values of very different sizes, of both signs: what rounding trips over."""
    values = random.standard_normal(shape) * np.exp2(random.integers(-8, 3, shape))
    return values.astype(np.float32)

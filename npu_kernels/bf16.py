"""bfloat16 in numpy, which has none: the high halves of float32s."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def to_bits(values: Array) -> Array:
    """float32 to bfloat16 as uint16, to nearest, ties to even. Not for NaNs."""
    words = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)


def from_bits(bits: Array) -> Array:
    """bfloat16 as uint16 to float32: exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values: Array) -> Array:
    """float32s, each the bfloat16 next to it."""
    return from_bits(to_bits(values))


def bits_of(value: float) -> int:
    """A float32's bits as the int32 that kernels take it as."""
    return int(np.float32(value).view(np.int32))


def value_of(bits: int) -> float:
    """The inverse."""
    return float(np.int32(bits).view(np.float32))

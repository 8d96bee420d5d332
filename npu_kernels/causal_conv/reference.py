"""CausalConv. The kernel rounds nothing to bfloat16: high and low parts throughout."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def causal_conv(x: Array, weight: Array, tail: Array, silu: bool = True) -> tuple[Array, Array]:
    """x [tokens, C], weight [taps, C], tail [taps - 1, C], oldest first: y [tokens, C] and the next
    tail."""
    seen = np.concatenate([tail, x])
    total = sum(tap * seen[first : first + len(x)] for first, tap in enumerate(weight))
    y = total / (1 + np.exp(np.minimum(-total, 80))) if silu else total
    return y, seen[len(x) :]


def pack(weight: Array) -> Array:
    """A graph's weight [C, 1, taps] as cores take it, [taps, C]."""
    return np.ascontiguousarray(weight[:, 0].T)

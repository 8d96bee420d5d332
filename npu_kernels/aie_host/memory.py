"""Memory as a core's: aligned, and poisoned until somebody writes it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

ALIGNMENT = 64
POISON = 0xFFA5  # each two bytes: a NaN as bfloat16 and as float32 that no arithmetic gives


def aligned(shape: int | Sequence[int], dtype: Any = np.float32) -> Array:
    """Zeros that start at a multiple of 64 bytes."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(count + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    array: Array = memory[start : start + count].view(dtype).reshape(shape)
    return array


def poisoned(byte_count: int) -> Array:
    """Bytes that nobody wrote: kernels that read them are faulted."""
    memory = aligned(byte_count, np.uint8)
    even = byte_count // 2 * 2
    memory[:even].view("<u2")[:] = POISON
    memory[even:] = POISON & 0xFF
    return memory

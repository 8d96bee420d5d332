"""The order in which a DMA visits memory: in words of 4 bytes, nothing smaller can move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from npu_kernels.iron_sim.faults import DesignFault

WORD_BYTES = 4
Words = np.ndarray[Any, np.dtype[np.uint32]]


@dataclass(frozen=True, slots=True)
class Walk:
    """Words offset + sum of index times stride, the last dimension fastest."""

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def count(self) -> int:
        return prod(self.sizes)

    @property
    def last(self) -> int:
        """The highest word it visits."""
        return self.offset + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))

    def merged(self) -> tuple[tuple[int, int], ...]:
        """(size, stride) with dimensions that continue each other made one, and none of size 1."""
        dims: list[tuple[int, int]] = []
        for size, stride in zip(self.sizes, self.strides, strict=True):
            if size == 1:
                continue
            if dims and dims[-1][1] == size * stride:
                dims[-1] = (dims[-1][0] * size, stride)
            else:
                dims.append((size, stride))
        return tuple(dims)

    @property
    def linear(self) -> bool:
        dims = self.merged()
        return not dims or (len(dims) == 1 and dims[0][1] == 1)

    def at(self, start: int, stop: int) -> slice | np.ndarray[Any, np.dtype[np.int64]]:
        """Where the words [start, stop) of the walk are."""
        dims = self.merged()
        if not dims or (len(dims) == 1 and dims[0][1] == 1):
            return slice(self.offset + start, self.offset + stop)
        rest = np.arange(start, stop, dtype=np.int64)
        places = np.full(stop - start, self.offset, dtype=np.int64)
        for size, stride in reversed(dims):
            rest, digit = np.divmod(rest, size)
            places += digit * stride
        return places


def walk_of(
    offset: int, sizes: Sequence[int], strides: Sequence[int], itemsize: int, where: str
) -> Walk:
    """The same elements as words; a fault where that cuts a word in two."""
    dims = list(zip(sizes, strides, strict=True))
    while len(dims) > 1 and dims[-1][0] == 1:
        dims.pop()
    if itemsize % WORD_BYTES == 0:
        words = itemsize // WORD_BYTES
        dims = [(size, stride * words) for size, stride in dims]
        if words > 1:
            dims.append((words, 1))
        return _walk(offset * words, dims)
    per_word = WORD_BYTES // itemsize
    size, stride = dims[-1]
    if stride != 1 or size % per_word or offset % per_word:
        raise _cut(
            where, f"{size} elements of {itemsize} bytes at stride {stride}, offset {offset}"
        )
    if any(n > 1 and s % per_word for n, s in dims[:-1]):
        raise _cut(where, f"strides {list(strides)} of elements of {itemsize} bytes")
    outer = [(n, s // per_word) for n, s in dims[:-1]]
    return _walk(offset // per_word, [*outer, (size // per_word, 1)])


def _walk(offset: int, dims: list[tuple[int, int]]) -> Walk:
    return Walk(offset, tuple(n for n, _ in dims), tuple(s for _, s in dims))


def _cut(where: str, what: str) -> DesignFault:
    fix = "make the innermost run and every stride a multiple of 4 bytes"
    return DesignFault("granularity", where, what, fix)

"""A snapshot is an immutable host copy of memory, cut so that a path of them restores it.

Rows are one token's keys and values in every attention layer: a snapshot holds those of
[start, end), as [heads, end - start, width]. State is what cannot be cut by token: it sums up
all before `end`, and a snapshot holds it whole, or not at all (None: passed through only).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flm.devices.device import Array
from flm.memory.layout import MemoryLayout, MemoryTensor

BLOCK_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Snapshot:
    start: int
    end: int
    rows: Mapping[str, Array]  # name -> [heads, end - start, width]
    state: Mapping[str, Array] | None  # {}: the model has none, so any row can be restored to

    def __post_init__(self) -> None:
        assert self.start < self.end, f"empty snapshot at {self.start}"
        for name, array in self.rows.items():
            assert array.shape[1] == self.end - self.start, f"{name}: {array.shape[1]} rows"


def empty_rows(layout: MemoryLayout, count: int) -> dict[str, Array]:
    """Arrays [heads, count, width] for `count` rows of each rows tensor.

    They share a few blocks, which come in large pages: filling them is three times as fast as an
    array each. A block is small enough not to matter while one of its arrays keeps it alive.
    """
    rows: dict[str, Array] = {}
    for tensors in _blocks(layout.rows, count):
        block, end = np.empty(sum(t.bytes for t in tensors) * count, np.uint8), 0
        for tensor in tensors:
            start, end = end, end + tensor.bytes * count
            heads, width = tensor.shape
            rows[tensor.name] = block[start:end].view(tensor.dtype).reshape(heads, count, width)
    return rows


def _blocks(tensors: tuple[MemoryTensor, ...], count: int) -> list[list[MemoryTensor]]:
    blocks: list[list[MemoryTensor]] = []
    room = 0
    for tensor in tensors:
        size = tensor.bytes * count
        if size > room:
            blocks.append([])
            room = BLOCK_BYTES
        blocks[-1].append(tensor)
        room -= size
    return blocks

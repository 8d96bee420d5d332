"""What a model carries from token to token: names, shapes and dtypes, rows or state."""

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from flm.core.tensor import MemoryKind, TensorSpec


@dataclass(frozen=True, slots=True)
class MemoryTensor:
    """One tensor of one lane.

    Rows: `shape` is (heads, width), held as [heads, capacity, width]: row r is [:, r, :].
    State: `shape` is the whole of it.
    """

    name: str
    kind: MemoryKind
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        assert self.kind is MemoryKind.STATE or len(self.shape) == 2, f"{self.name}: {self.shape}"

    @property
    def bytes(self) -> int:
        """Of one row, or of the state."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    def held(self, count: int) -> tuple[int, ...]:
        """The shape of `count` rows, or of the state."""
        if self.kind is MemoryKind.STATE:
            return self.shape
        heads, width = self.shape
        return heads, count, width

    def held_bytes(self, count: int) -> int:
        return self.bytes * (count if self.kind is MemoryKind.ROWS else 1)

    def spec(self, *, lanes: int, capacity: int) -> TensorSpec:
        """For `lanes` lanes with room for `capacity` rows each."""
        return TensorSpec(self.name, (lanes, *self.held(capacity)), self.dtype)


WIDE = 128  # heads wider than this onnxruntime multiplies in one go with few keys, else in two
FEW_KEYS = 64  # up to this many are few


@dataclass(frozen=True)  # without slots, so that what every pass asks is summed up once
class MemoryLayout:
    tensors: tuple[MemoryTensor, ...]

    @cached_property
    def read_min(self) -> int:
        """The fewest tokens a pass may read: a lone row adds up otherwise, and a state keeps it."""
        return 2 if self.state else 1

    @cached_property
    def first_min(self) -> int:
        """The fewest tokens, from the first one on, that a pass may end at, but with the prompt."""
        wide = any(tensor.shape[1] > WIDE for tensor in self.rows)
        return max(self.read_min, FEW_KEYS + 1 if wide else 1)

    @cached_property
    def row_bytes(self) -> int:
        return sum(t.bytes for t in self.tensors if t.kind is MemoryKind.ROWS)

    @cached_property
    def state_bytes(self) -> int:
        return sum(t.bytes for t in self.tensors if t.kind is MemoryKind.STATE)

    @cached_property
    def rows(self) -> tuple[MemoryTensor, ...]:
        return tuple(t for t in self.tensors if t.kind is MemoryKind.ROWS)

    @cached_property
    def state(self) -> tuple[MemoryTensor, ...]:
        return tuple(t for t in self.tensors if t.kind is MemoryKind.STATE)

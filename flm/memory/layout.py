"""What a model carries from token to token: names, shapes and dtypes, rows or state."""

from dataclasses import dataclass
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

    def spec(self, *, lanes: int, capacity: int) -> TensorSpec:
        """For `lanes` lanes with room for `capacity` rows each."""
        return TensorSpec(self.name, (lanes, *self.held(capacity)), self.dtype)


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    tensors: tuple[MemoryTensor, ...]

    @property
    def row_bytes(self) -> int:
        return sum(t.bytes for t in self.tensors if t.kind is MemoryKind.ROWS)

    @property
    def state_bytes(self) -> int:
        return sum(t.bytes for t in self.tensors if t.kind is MemoryKind.STATE)

    @property
    def rows(self) -> tuple[MemoryTensor, ...]:
        return tuple(t for t in self.tensors if t.kind is MemoryKind.ROWS)

    @property
    def state(self) -> tuple[MemoryTensor, ...]:
        return tuple(t for t in self.tensors if t.kind is MemoryKind.STATE)

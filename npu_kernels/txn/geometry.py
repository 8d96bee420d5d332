"""The arrays there are: a tile's address is (column << 25) | (row << 20) | offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

COLUMN_SHIFT, ROW_SHIFT = 25, 20
OFFSET_MASK = (1 << ROW_SHIFT) - 1
ROW_MASK = (1 << (COLUMN_SHIFT - ROW_SHIFT)) - 1


@dataclass(frozen=True, slots=True)
class Geometry:
    name: str
    generation: int  # in a stream's header
    columns: int
    rows: int = 6
    memtile_rows: int = 1

    def holds(self, column: int, row: int) -> bool:
        return column < self.columns and row < self.rows


NPU1 = Geometry("npu1", 3, 5)
NPU2 = Geometry("npu2", 4, 8)


@dataclass(frozen=True, slots=True)
class Place:
    """A register or a word of memory: whose, and where in it."""

    column: int
    row: int
    offset: int

    @classmethod
    def of(cls, address: int) -> Place:
        row = (address >> ROW_SHIFT) & ROW_MASK
        return cls(address >> COLUMN_SHIFT, row, address & OFFSET_MASK)

    @property
    def address(self) -> int:
        return self.column << COLUMN_SHIFT | self.row << ROW_SHIFT | self.offset

    @property
    def kind(self) -> Literal["shim", "memtile", "core"]:
        return "shim" if self.row == 0 else "memtile" if self.row == 1 else "core"

    def __str__(self) -> str:
        return f"({self.column},{self.row})+0x{self.offset:05x}"

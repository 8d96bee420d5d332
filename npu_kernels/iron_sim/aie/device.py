"""aie.iron.device: devices, and places on them."""

from __future__ import annotations

from typing import Any

from npu_kernels.iron_sim import record
from npu_kernels.iron_sim.faults import DesignFault

COLUMNS = {"npu1": 4, "npu2": 8}


class Tile:
    """A place, or (column and row None) a kind of place that is chosen later."""

    def __init__(
        self, col: int | None = None, row: int | None = None, *, tile_type: Any = None, **_: Any
    ) -> None:
        self.col, self.row, self.tile_type = col, row, tile_type

    @property
    def pinned(self) -> record.Tile | None:
        if self.col is None or self.row is None:
            return None
        return record.Tile(self.col, self.row)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tile) and (self.col, self.row) == (other.col, other.row)

    def __hash__(self) -> int:
        return hash((self.col, self.row))

    def __repr__(self) -> str:
        return f"Tile({self.col}, {self.row})"


AnyShimTile, AnyMemTile, AnyComputeTile = Tile(), Tile(), Tile()


def pinned(*places: Any) -> record.Tile | None:
    """The first place that is one; older designs say placement=, newer ones tile=."""
    for place in places:
        if isinstance(place, Tile) and place.pinned is not None:
            return place.pinned
    return None


class Device:
    family = "npu2"
    columns: int | None = None

    @property
    def cols(self) -> int:
        return self.columns or COLUMNS[self.family]

    @property
    def rows(self) -> int:
        return 6

    def recorded(self) -> record.Device:
        return record.Device(self.family, self.cols)


def _device(family: str, columns: int | None) -> type[Device]:
    name = family.upper() + (f"Col{columns}" if columns else "")
    return type(name, (Device,), {"family": family, "columns": columns})


CLASSES: dict[str, type[Device]] = {
    device.__name__: device
    for family, most in COLUMNS.items()
    for device in [_device(family, None), *(_device(family, n) for n in range(1, most + 1))]
}

_current: list[Device] = []


def from_name(name: str, *, n_cols: int | None = 1) -> Device:
    """None: all columns."""
    family = {"npu": "npu1"}.get(name, name)
    if family not in COLUMNS:
        raise ValueError(f"unknown device {name!r}")
    if n_cols is not None and not 1 <= n_cols <= COLUMNS[family]:
        raise ValueError(f"{n_cols} columns of {family}, which has {COLUMNS[family]}")
    return _device(family, None if n_cols == COLUMNS[family] else n_cols)()


def set_current_device(device: Device) -> None:
    _current[:] = [device]


def get_current_device() -> Device:
    """mlir-aie would take an npu1 if none was set, silently."""
    if not _current:
        fix = 'iron.set_current_device(from_name("npu2", n_cols=None))'
        raise DesignFault("device-unset", "get_current_device", "no device was set", fix)
    return _current[-1]


def forget_current_device() -> None:
    _current.clear()

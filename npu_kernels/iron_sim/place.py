"""Where things go that a design does not pin: cores column by column, what feeds them near by.

Ours need not be mlir-aie's choice: a design whose budgets depend on it pins its tiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from npu_kernels.iron_sim.limits import DMAS
from npu_kernels.iron_sim.record import Device, Tile


class Floor:
    """The tiles of a device while they are given out."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._cores: set[Tile] = set()
        self._channels: Counter[tuple[Tile, str]] = Counter()

    def core(self, pinned: Tile | None) -> Tile:
        if pinned is None:
            free = (tile for tile in self._every_core() if tile not in self._cores)
            pinned = next(free, Tile(0, 2))
        self._cores.add(pinned)
        return pinned

    def reserve_cores(self, pinned: Iterable[Tile | None]) -> None:
        self._cores.update(tile for tile in pinned if tile is not None)

    def _every_core(self) -> Iterable[Tile]:
        return (
            Tile(column, row)
            for column in range(self._device.columns)
            for row in range(2, self._device.rows)
        )

    def near(self, row: int, column: int, pinned: Tile | None, into: int, out: int) -> Tile:
        """A shim (row 0) or memory tile (row 1) with so many channels left, here or near."""
        wanted = {"in": into, "out": out}
        if pinned is None:
            columns = sorted(range(self._device.columns), key=lambda c: (abs(c - column), c))
            tiles = [Tile(c, row) for c in columns]
            fits = (tile for tile in tiles if self._has(tile, wanted))
            pinned = next(fits, tiles[0])
        for way, count in wanted.items():
            self._channels[pinned, way] += count
        return pinned

    def _has(self, tile: Tile, wanted: dict[str, int]) -> bool:
        channels = DMAS[tile.kind].channels
        return all(self._channels[tile, way] + n <= channels for way, n in wanted.items() if n)

"""aie.helpers.taplib.TensorTiler2D: a matrix in tiles, groups of tiles, and groups with gaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npu_kernels.iron_sim.aie.taps import TensorAccessPattern, TensorAccessSequence

Pair = Sequence[int]


class TensorTiler2D:
    """Makes a sequence with one pattern for each group of tiles; four dimensions each:

    groups across, groups along, rows of a tile, its columns (each pair in the order asked for).
    """

    @classmethod
    def simple_tiler(
        cls, tensor_dims: Pair, tile_dims: Pair | None = None, **options: Any
    ) -> TensorAccessSequence:
        """One pattern for each tile."""
        return cls.group_tiler(tensor_dims, tile_dims or _pair(tensor_dims), **options)

    @classmethod
    def group_tiler(
        cls,
        tensor_dims: Pair,
        tile_dims: Pair,
        tile_group_dims: Pair | None = None,
        **options: Any,
    ) -> TensorAccessSequence:
        """One pattern for each tile_group_dims tiles that lie together."""
        return cls.step_tiler(tensor_dims, tile_dims, tile_group_dims or (1, 1), **options)

    @classmethod
    def step_tiler(
        cls,
        tensor_dims: Pair,
        tile_dims: Pair,
        tile_group_repeats: Pair,
        tile_group_steps: Pair | None = None,
        tile_col_major: bool = False,
        tile_group_col_major: bool = False,
        iter_col_major: bool = False,
        allow_partial: bool = False,
        pattern_repeat: int = 1,
        prune_step: bool = True,
    ) -> TensorAccessSequence:
        """One pattern for tile_group_repeats tiles, tile_group_steps tiles from one to the next."""
        tensor, tile = _pair(tensor_dims), _pair(tile_dims)
        if any(t % s for t, s in zip(tensor, tile, strict=True)):
            raise ValueError(f"a tensor of {tensor} does not divide into tiles of {tile}")
        grid = [t // s for t, s in zip(tensor, tile, strict=True)]
        steps = list(tile_group_steps or (1, 1))
        repeats = list(tile_group_repeats)
        spans = [s * r for s, r in zip(steps, repeats, strict=True)]
        if not allow_partial and any(g % s for g, s in zip(grid, spans, strict=True)):
            raise ValueError(f"{grid} tiles do not divide into groups that span {spans}")
        starts = [_starts(g, s, r) for g, s, r in zip(grid, steps, repeats, strict=True)]
        if iter_col_major:
            places = [(down, right) for right in starts[1] for down in starts[0]]
        else:
            places = [(down, right) for down in starts[0] for right in starts[1]]
        group = _Group(
            tensor, tile, steps, tile_col_major, tile_group_col_major, pattern_repeat, prune_step
        )
        return TensorAccessSequence.from_taps(
            group.at(place, [n for _, n in place]) for place in places
        )


class _Group:
    def __init__(
        self,
        tensor: list[int],
        tile: list[int],
        steps: list[int],
        tile_col_major: bool,
        group_col_major: bool,
        pattern_repeat: int,
        prune: bool,
    ) -> None:
        self._tensor, self._tile, self._steps = tensor, tile, steps
        self._tile_col_major, self._group_col_major = tile_col_major, group_col_major
        self._repeat, self._prune = pattern_repeat, prune

    def at(self, place: tuple[tuple[int, int], tuple[int, int]], counts: list[int]) -> Any:
        (down, _), (right, _) = place
        width = self._tensor[1]
        offset = down * self._tile[0] * width + right * self._tile[1]
        inner = [(self._tile[0], width), (self._tile[1], 1)]
        outer = [
            (counts[0], self._steps[0] * self._tile[0] * width),
            (counts[1], self._steps[1] * self._tile[1]),
        ]
        inner = inner[::-1] if self._tile_col_major else inner
        outer = outer[::-1] if self._group_col_major else outer
        dims = [dim for dim in outer if dim[0] > 1] + inner
        dims = _merged(dims) if self._prune else dims
        dims = [(1, 0)] * (4 - len(dims)) + dims
        if self._repeat != 1:
            if dims[0] != (1, 0):
                raise ValueError(f"no dimension left for pattern_repeat={self._repeat}")
            dims[0] = (self._repeat, 0)
        return TensorAccessPattern(self._tensor, offset, [n for n, _ in dims], [s for _, s in dims])


def _merged(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Tiles that continue each other row by row are one taller tile."""
    if len(dims) > 2 and dims[-3][1] == dims[-2][0] * dims[-2][1]:
        return [*dims[:-3], (dims[-3][0] * dims[-2][0], dims[-2][1]), dims[-1]]
    return dims


def _starts(tiles: int, step: int, repeat: int) -> list[tuple[int, int]]:
    """(first tile, how many) of each group along one side."""
    found = []
    for block in range(0, tiles, step * repeat):
        for first in range(block, min(block + step, tiles)):
            count = min(repeat, -(-(tiles - first) // step))
            found.append((first, count))
    return found


def _pair(dims: Sequence[int]) -> list[int]:
    values = [int(n) for n in dims]
    if len(values) == 1:
        values = [1, *values]
    if len(values) != 2 or min(values) < 1:
        raise ValueError(f"dimensions {dims}: two are wanted")
    return values

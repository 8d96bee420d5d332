"""Qwen's way: scaled to whole cells, cut into patches, those of a cell one after the other; and for
each patch where it stands.

Source: transformers, Qwen2VLImageProcessor (smart_resize) and Qwen3-VL's table of places.
"""

from collections.abc import Mapping
from math import ceil, floor, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from flm.core.picture import CELLS, CORNERS, PATCHES, SHARES, Picture, Sight, View
from flm.text.sight.scaled import colours, require_shape, scaled

Array = npt.NDArray[Any]


def fitted(picture: Picture, sight: Sight, *, tokens_max: int, place: str) -> Picture:
    """The same with sides of whole cells, no more than `tokens_max` of them. Raises BadRequest for
    one that is far too long.
    """
    return scaled(
        picture, *size_fitted(picture.width, picture.height, sight, tokens_max, place=place)
    )


def views(picture: Picture, sight: Sight, number: int) -> tuple[View, ...]:
    """The picture, in one."""
    rows, columns = picture.height // sight.cell, picture.width // sight.cell
    return (View(picture, rows, columns, sight.before, sight.after),)


def size_fitted(
    width: int, height: int, sight: Sight, tokens_max: int, *, place: str
) -> tuple[int, int]:
    require_shape(width, height, place)
    cell = sight.cell
    most = min(sight.pixels_max, tokens_max * cell**2)
    least = min(sight.pixels_min, most)
    sides = round(width / cell) * cell, round(height / cell) * cell
    if sides[0] * sides[1] > most:
        shrink = sqrt(width * height / most)
        sides = _whole(width / shrink, cell), _whole(height / shrink, cell)
        # The shorter side is a cell at least, so a long picture may still be too large.
        longest = max(cell, most // min(sides) // cell * cell)
        sides = min(sides[0], longest), min(sides[1], longest)
    elif sides[0] * sides[1] < least:
        grow = sqrt(least / (width * height))
        sides = ceil(width * grow / cell) * cell, ceil(height * grow / cell) * cell
    return sides


def _whole(side: float, cell: int) -> int:
    return max(cell, floor(side / cell) * cell)


def inputs(picture: Picture, sight: Sight) -> Mapping[str, Array]:
    """Of N patches of a fitted picture: what `cut` gives, `patches` and `cells`; and the four
    `corners` [N, 4] in the table of places that each lies between, and their `shares` [N, 4].
    """
    side, merge = sight.side, sight.merge
    counts = picture.height // sight.patch, picture.width // sight.patch
    places = [np.linspace(0, side - 1, count, dtype=np.float32) for count in counts]
    tops, lefts = (np.floor(each).astype(np.int64) for each in places)
    below, right = (np.minimum(each + 1, side - 1) for each in (tops, lefts))
    down, along = places[0] - tops, places[1] - lefts
    corners = [y[:, None] * side + x for y in (tops, below) for x in (lefts, right)]
    shares = [y[:, None] * x for y in (1 - down, down) for x in (1 - along, along)]
    return {
        **cut(picture, sight),
        CORNERS: _in_blocks(np.stack(corners, axis=-1), merge),
        SHARES: _in_blocks(np.stack(shares, axis=-1).astype(np.float32), merge),
    }


def cut(picture: Picture, sight: Sight) -> dict[str, Array]:
    """N `patches` [N, 3 * patch * patch] of a fitted picture, in blocks of those that merge, and
    the row and column of each, `cells` [N, 2].
    """
    patch, merge = sight.patch, sight.merge
    rows, columns = picture.height // patch, picture.width // patch
    values = colours(picture, sight).reshape(rows, patch, columns, patch, 3)
    cells = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1)
    return {
        PATCHES: _in_blocks(values.transpose(0, 2, 4, 1, 3).reshape(rows, columns, -1), merge),
        CELLS: _in_blocks(cells, merge),
    }


def _in_blocks(grid: Array, merge: int) -> Array:
    """[rows, columns, K] to [rows * columns, K], those that merge one after the other."""
    rows, columns, width = grid.shape
    blocks = grid.reshape(rows // merge, merge, columns // merge, merge, width).swapaxes(1, 2)
    return np.ascontiguousarray(blocks).reshape(rows * columns, width)

"""Pictures made fit for a model, as the reference processors do it: scaled to whole cells, cut into
patches; and for each patch where it stands.

Source: transformers, Qwen2VLImageProcessor (smart_resize) and Qwen3-VL's table of places.
"""

from dataclasses import dataclass
from math import ceil, floor, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from flm.core.picture import Picture, Sight
from flm.errors import BadRequest

ASPECT_MAX = 200  # of its sides
MEAN = DEVIATION = 0.5  # of a colour from 0 to 1

Floats = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Patches:
    """N of one picture, in blocks of those that merge."""

    values: Floats  # [N, 3 * patch * patch]
    corners: Whole  # [N, 4] in the table of places
    shares: Floats  # [N, 4]
    cells: Whole  # [N, 2]: row and column


def fitted(picture: Picture, sight: Sight, *, tokens_max: int, place: str) -> Picture:
    """The same with sides of whole cells, no more than `tokens_max` of them. Raises BadRequest for
    one that is far too long.
    """
    width, height = size_fitted(picture.width, picture.height, sight, tokens_max, place=place)
    if (width, height) == (picture.width, picture.height):
        return picture
    return _scaled(picture, width, height)


def lowered(picture: Picture, height_max: int | None) -> Picture:
    """No higher than that, with the sides' proportion."""
    if height_max is None or picture.height <= height_max:
        return picture
    width = max(1, round(picture.width * height_max / picture.height))
    return _scaled(picture, width, height_max)


def _scaled(picture: Picture, width: int, height: int) -> Picture:
    from PIL import Image

    image = Image.frombytes("RGB", (picture.width, picture.height), picture.rgb)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    return Picture(width, height, image.tobytes())


def size_fitted(
    width: int, height: int, sight: Sight, tokens_max: int, *, place: str
) -> tuple[int, int]:
    if max(width, height) > ASPECT_MAX * min(width, height):
        raise BadRequest(
            f"{place} is an image of {width:,} by {height:,} pixels, too long for its width",
            fix=f"send one whose longer side is up to {ASPECT_MAX} times the shorter",
            param=place,
        )
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


def patches_of(picture: Picture, sight: Sight) -> Patches:
    """Of a fitted picture."""
    patch, merge, side = sight.patch, sight.merge, sight.side
    rows, columns = picture.height // patch, picture.width // patch
    pixels = np.frombuffer(picture.rgb, np.uint8).reshape(picture.height, picture.width, 3)
    colours = (pixels.astype(np.float32) / 255 - MEAN) / DEVIATION
    values = colours.reshape(rows, patch, columns, patch, 3).transpose(0, 2, 4, 1, 3)
    cells = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1)
    places = [np.linspace(0, side - 1, count, dtype=np.float32) for count in (rows, columns)]
    tops, lefts = (np.floor(each).astype(np.int64) for each in places)
    below, right = (np.minimum(each + 1, side - 1) for each in (tops, lefts))
    down, along = places[0] - tops, places[1] - lefts
    corners = [y[:, None] * side + x for y in (tops, below) for x in (lefts, right)]
    shares = [y[:, None] * x for y in (1 - down, down) for x in (1 - along, along)]
    return Patches(
        _in_blocks(values.reshape(rows, columns, -1), merge),
        _in_blocks(np.stack(corners, axis=-1), merge),
        _in_blocks(np.stack(shares, axis=-1).astype(np.float32), merge),
        _in_blocks(cells, merge),
    )


def _in_blocks(grid: npt.NDArray[Any], merge: int) -> npt.NDArray[Any]:
    """[rows, columns, K] to [rows * columns, K], those that merge one after the other."""
    rows, columns, width = grid.shape
    blocks = grid.reshape(rows // merge, merge, columns // merge, merge, width).swapaxes(1, 2)
    return np.ascontiguousarray(blocks).reshape(rows * columns, width)

"""MiniCPM-V's way: the whole of a picture, made as large as one view is; and where it is larger
than that slices of it, too, by the grid that is most like its shape.

Source: transformers, MiniCPMV4_6ImageProcessorPil and MiniCPMV4_6Processor.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from flm.core.picture import BUCKETS, PATCHES, Picture, Sight, View
from flm.errors import BadRequest
from flm.text.sight.scaled import colours, require_shape, scaled

Array = npt.NDArray[Any]
Size = tuple[float, float]  # width, height

BEFORE, AFTER = "<slice>", "</slice>"
NUMBER = "<image_id>{}</image_id>"


@dataclass(frozen=True, slots=True)
class Cut(Picture):
    """The whole, and slices row by row, `columns` in each."""

    slices: tuple[Picture, ...]
    columns: int

    @property
    def bytes_held(self) -> int:
        return len(self.rgb) + sum(each.bytes_held for each in self.slices)


def fitted(picture: Picture, sight: Sight, *, tokens_max: int, place: str) -> Cut:
    """Cut, after it is made smaller where its views would come to more than `tokens_max` tokens.
    Raises BadRequest where the smallest do, or it is far too long.
    """
    require_shape(picture.width, picture.height, place)
    fewer = [sqrt(most * sight.pixels_max) for most in range(sight.slices, 0, -1)]
    for side in (inf, *fewer):
        shrink = min(1.0, side / sqrt(picture.width * picture.height))
        size = max(1, int(picture.width * shrink)), max(1, int(picture.height * shrink))
        if (needed := _tokens(size, sight)) <= tokens_max:
            return _cut(scaled(picture, *size), sight)
    raise BadRequest(
        f"{place} becomes {needed:,} tokens at least, and {tokens_max:,} are allowed",
        fix=f"let image-max-tokens be {needed}, or more",
        param=place,
    )


def views(picture: Picture, sight: Sight, number: int) -> tuple[View, ...]:
    """The whole, then slices, with a line break behind each row but the last."""
    assert isinstance(picture, Cut)
    before = NUMBER.format(number) * sight.numbered + sight.before
    found = [_view(picture, sight, before, sight.after)]
    last = len(picture.slices)
    for at, part in enumerate(picture.slices, 1):
        ends = at % picture.columns == 0 and at < last
        found.append(_view(part, sight, BEFORE, AFTER + "\n" * ends))
    return tuple(found)


def inputs(picture: Picture, sight: Sight) -> Mapping[str, Array]:
    """Of N patches of a view: their `patches` [N, 3 * patch * patch] and the place of each in the
    table of these, `buckets` [N]. Those of a cell come one after the other, and of such a cell,
    where it merges twice, those that merge first.
    """
    patch, side = sight.patch, sight.side
    rows, columns = picture.height // patch, picture.width // patch
    values = colours(picture, sight).reshape(rows, patch, columns, patch, 3)
    at = [_buckets(count, side) for count in (rows, columns)]
    return {
        PATCHES: _nested(values.transpose(0, 2, 4, 1, 3).reshape(rows, columns, -1), sight.merge),
        BUCKETS: _nested((at[0][:, None] * side + at[1])[..., None], sight.merge)[:, 0],
    }


def _cut(picture: Picture, sight: Sight) -> Cut:
    whole, (rows, columns), (width, height) = _sizes((picture.width, picture.height), sight)
    slices = []
    if rows:
        large = scaled(picture, columns * width, rows * height)
        pixels = np.frombuffer(large.rgb, np.uint8).reshape(rows, height, columns, width, 3)
        parts = (pixels[row, :, column] for row, column in np.ndindex(rows, columns))
        slices = [Picture(width, height, part.tobytes()) for part in parts]
    return Cut(*whole, scaled(picture, *whole).rgb, tuple(slices), columns)


def _view(picture: Picture, sight: Sight, before: str, after: str) -> View:
    rows, columns = picture.height // sight.cell, picture.width // sight.cell
    return View(picture, rows, columns, before, after)


def _tokens(size: Size, sight: Sight) -> int:
    whole, (rows, columns), sliced = _sizes(size, sight)
    pixels = whole[0] * whole[1] + rows * columns * sliced[0] * sliced[1]
    return pixels // sight.cell**2


def _sizes(size: Size, sight: Sight) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Width and height of the whole, rows and columns of slices, and the size of each."""
    rows, columns = _grid(size, sight)
    if not rows:
        return _resized(size, sight, grows=True), (0, 0), (0, 0)
    one = _whole(size[0], columns) / columns, _whole(size[1], rows) / rows
    return _resized(size, sight), (rows, columns), _resized(one, sight, grows=True)


def _grid(size: Size, sight: Sight) -> tuple[int, int]:
    """Rows and columns of slices; none of a picture that is no larger than a view."""
    width, height = size
    views = min(ceil(width * height / sight.pixels_max), sight.slices)
    if views <= 1:
        return 0, 0
    counts = [n for n in (views - 1, views, views + 1) if 1 < n <= sight.slices]
    grids = [(rows, n // rows) for n in counts for rows in range(1, n + 1) if n % rows == 0]

    def unlike(grid: tuple[int, int]) -> tuple[float, int]:
        return abs(log(width / height) - log(grid[1] / grid[0])), -grid[0]

    return min(grids, key=unlike)


def _resized(size: Size, sight: Sight, *, grows: bool = False) -> tuple[int, int]:
    """In whole cells, with about as many pixels as a view has; fewer, unless it grows."""
    width, height = size
    if width * height > sight.pixels_max or grows:
        shape = width / height
        height = int(sqrt(sight.pixels_max) / sqrt(shape))
        width = int(height * shape)
    return _whole(width, sight.cell), _whole(height, sight.cell)


def _whole(length: float, step: int) -> int:
    return max(round(length / step) * step, step)


def _buckets(count: int, side: int) -> Array:
    """Which of `side` places each of `count` patches is at: in floats, as the reference has it."""
    step = 1 / side
    bounds = np.arange(step, 1, step).astype(np.float32)
    at = np.arange(count, dtype=np.float32) / np.float32(count)
    return np.searchsorted(bounds, at, side="right")


def _nested(grid: Array, merge: int) -> Array:
    """[rows, columns, K] to [rows * columns, K]."""
    rows, columns, width = grid.shape
    twos = merge.bit_length() - 1  # merges of two by two
    split = grid.reshape(rows // merge, *[2] * twos, columns // merge, *[2] * twos, width)
    order = [axis for each in range(twos + 1) for axis in (each, each + twos + 1)]
    return np.ascontiguousarray(split.transpose(*order, 2 * twos + 2)).reshape(-1, width)

"""What a pass of a model that sees is given besides tokens: rows of pictures, which token has
which, and where tokens stand.

A token of a text stands one further than the one before. Where pictures are spread, all tokens of
one come at one time, in a row and a column each; the text after it goes on behind the longer of its
sides.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flm.core.picture import Placed, is_picture
from flm.core.step import Span
from flm.core.tensor import TensorSpec
from flm.devices.device import PICTURES, PLACES, POSITIONS, VIEWS, Array, Buffer, Device
from flm.runner.eyes import Eyes

Whole = npt.NDArray[np.int64]


class Seeing:
    """Buffers are made once for tokens decoded, and anew where a chunk has another length."""

    def __init__(self, device: Device, lanes: int, eyes: Eyes) -> None:
        self._device = device
        self._eyes = eyes
        self._new_places = device.allocate(TensorSpec(PLACES, (lanes, 1), "int64"))
        self._new_positions = device.allocate(TensorSpec(POSITIONS, (lanes, 3, 1), "int64"))
        self._sight = eyes.sight
        self._no_views = device.allocate(TensorSpec(VIEWS, (0, 2), "int64"))
        self._nobodys = device.allocate(TensorSpec(PICTURES, (1, eyes.width)))

    def inputs(self, spans: Sequence[Span], length: int) -> dict[str, Buffer]:
        """Of a pass over adjacent lanes, `length` tokens each. Raises DeviceFailed."""
        rows: list[Array] = []
        views: list[tuple[int, int]] = []
        places = self._places(spans, length)
        places.array()[...] = 0
        for lane, span in enumerate(spans):
            for each in span.pictures:
                first, end = max(each.start, span.start), min(each.end, span.end)
                if first < end:
                    assert not self._sight.whole or (first, end) == (each.start, each.end), span
                    before = sum(map(len, rows))
                    numbers = np.arange(before + 1, before + 1 + end - first)
                    places.array()[lane, first - span.start : end - span.start] = numbers
                    views.append((first - span.start, end - span.start))
                    rows.append(self._eyes.rows(each)[first - each.start : end - each.start])
        found = {PICTURES: self._rows(rows), PLACES: places}
        if self._sight.spread:
            found[POSITIONS] = self._positions(spans, length)
        if self._sight.whole:
            found[VIEWS] = self._views(views)
        for buffer in found.values():
            buffer.to_device()
        return found

    def _places(self, spans: Sequence[Span], length: int) -> Buffer:
        if length == 1:
            return self._new_places.part(spans[0].lane, spans[-1].lane + 1)
        return self._device.allocate(TensorSpec(PLACES, (1, length), "int64"))

    def _positions(self, spans: Sequence[Span], length: int) -> Buffer:
        if length == 1:
            positions = self._new_positions.part(spans[0].lane, spans[-1].lane + 1)
        else:
            positions = self._device.allocate(TensorSpec(POSITIONS, (1, 3, length), "int64"))
        for lane, span in enumerate(spans):
            positions.array()[lane] = positions_of(span.pictures, span.start, span.start + length)
        return positions

    def _views(self, views: Sequence[tuple[int, int]]) -> Buffer:
        if not views:
            return self._no_views
        buffer = self._device.allocate(TensorSpec(VIEWS, (len(views), 2), "int64"))
        buffer.array()[...] = views
        return buffer

    def _rows(self, rows: Sequence[Array]) -> Buffer:
        if not rows:
            return self._nobodys
        shape = (1 + sum(map(len, rows)), self._eyes.width)
        buffer = self._device.allocate(TensorSpec(PICTURES, shape))
        np.concatenate(rows, out=buffer.array()[1:])
        return buffer


def words(tokens: Sequence[int]) -> list[int]:
    """Ids that a vocabulary has: those of pictures count for nothing."""
    return [0 if is_picture(token) else token for token in tokens]


def positions_of(pictures: Sequence[Placed], start: int, end: int) -> Whole:
    """[3, end - start]: time, row and column of tokens [start, end)."""
    found = np.tile(np.arange(start, end), (3, 1))
    shift = 0
    for each in pictures:
        first, last = max(each.start, start), min(each.end, end)
        if first < last:
            inside = np.arange(first, last) - each.start
            at = each.start + shift
            found[:, first - start : last - start] = [
                np.full(len(inside), at),
                at + inside // each.columns,
                at + inside % each.columns,
            ]
        shift += max(each.rows, each.columns) - each.rows * each.columns
        if each.end < end:
            behind = max(each.end, start)
            found[:, behind - start :] = np.arange(behind, end) + shift
    return found

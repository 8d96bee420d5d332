"""Frames: arrays as bytes behind a head that says what they are and what they add up to.

A file of rows is a frame for each window of tokens, each of one size but the last, so that a part
is read, and checked, without the rest. A file of state or logits is one frame.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from struct import Struct
from zlib import crc32

import numpy as np

from flm.devices.device import Array
from flm.memory.arrays import empty_rows
from flm.memory.layout import MemoryLayout
from flm.prefix.disk.stored import Piece

# Raised when the same snapshot would be written as other bytes.
BLOB_VERSION = 1
WINDOW_TOKENS = 256
MAGIC = b"flm1"
HEAD = Struct("<4sIQII")  # magic, checksum, number, start, end
_PAGE_WORDS = 512
_VECTORS_MAX = 1024  # what one writev takes


class Torn(Exception):
    """A frame is not what was written."""


@dataclass(frozen=True, slots=True)
class Frame:
    number: int  # of the segment or the snapshot
    start: int
    end: int  # rows [start, end), or the state at `end`

    def head(self, arrays: Sequence[Array]) -> bytes:
        """A sum for every 4 KiB, at memory speed, and a CRC of the sums: a changed byte always
        shows, so does a page in another's place."""
        checksum = crc32(HEAD.pack(MAGIC, 0, self.number, self.start, self.end))
        for array in arrays:
            data = _bytes(array)
            words = data[: len(data) // 8 * 8].view(np.uint64)
            whole = len(words) // _PAGE_WORDS * _PAGE_WORDS
            sums = np.add.reduce(words[:whole].reshape(-1, _PAGE_WORDS), axis=1)
            checksum = crc32(data[whole * 8 :].tobytes(), crc32(sums.tobytes(), checksum))
        return HEAD.pack(MAGIC, checksum, self.number, self.start, self.end)

    def write(self, file: int, arrays: Sequence[Array]) -> int:
        """At the end of `file`, a descriptor; how many bytes."""
        arrays = [np.ascontiguousarray(array) for array in arrays]
        return _write(file, [memoryview(self.head(arrays)), *_views(arrays)])

    def read(self, file: int, at: int, arrays: Sequence[Array]) -> int:
        """Into `arrays`, contiguous; how many bytes. Raises Torn."""
        head = bytearray(HEAD.size)
        count = _read(file, at, [memoryview(head), *_views(arrays)])
        if bytes(head) != self.head(arrays):
            raise Torn(f"checksum of [{self.start}, {self.end})")
        return count


@dataclass(frozen=True, slots=True)
class RowsFormat:
    """Files of rows of one layout."""

    layout: MemoryLayout
    window: int = WINDOW_TOKENS

    def bytes(self, count: int) -> int:
        """Of a file of `count` rows."""
        return -(-count // self.window) * HEAD.size + count * self.layout.row_bytes

    def write(
        self, file: int, number: int, extent: range, pieces: Sequence[Piece]
    ) -> Iterator[int]:
        """The rows of `extent` from `pieces`, a window at a time; how many bytes each."""
        for at in range(extent.start, extent.stop, self.window):
            until = min(at + self.window, extent.stop)
            yield Frame(number, at, until).write(file, self._cut(pieces, at, until))

    def read(
        self, file: int, number: int, extent: range, wanted: range, rows: Mapping[str, Array]
    ) -> None:
        """`wanted` rows of a file that has `extent`, into `rows` [heads, len(wanted), width]."""
        first = (wanted.start - extent.start) // self.window * self.window + extent.start
        for at in range(first, wanted.stop, self.window):
            until = min(at + self.window, extent.stop)
            place = self.bytes(at - extent.start)
            low, high = max(at, wanted.start), min(until, wanted.stop)
            into = {
                name: array[:, low - wanted.start : high - wanted.start]
                for name, array in rows.items()
            }
            if (low, high) == (at, until):
                Frame(number, at, until).read(file, place, self._heads(into))
            else:
                whole = empty_rows(self.layout, until - at)
                Frame(number, at, until).read(file, place, self._heads(whole))
                for name, array in into.items():
                    array[:] = whole[name][:, low - at : high - at]

    def _cut(self, pieces: Sequence[Piece], start: int, end: int) -> list[Array]:
        """Rows [start, end): views where one piece has them, for no copy is made of most."""
        parts = [
            self._heads(
                {
                    name: array[:, max(start, p.start) - p.start : min(end, p.end) - p.start]
                    for name, array in p.rows.items()
                }
            )
            for p in pieces
            if p.start < end and start < p.end
        ]
        if len(parts) == 1:
            return parts[0]
        return [np.concatenate(same) for same in zip(*parts, strict=True)]

    def _heads(self, rows: Mapping[str, Array]) -> list[Array]:
        """Every head of every tensor, [tokens, width], in layout order."""
        return [head for tensor in self.layout.rows for head in rows[tensor.name]]


def make_file(path: Path, size: int) -> None:
    """An empty file that is as long as it will be: whoever adds up sizes sees it at once."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(file, size)
    finally:
        os.close(file)


def sync_folder(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _views(arrays: Iterable[Array]) -> Iterator[memoryview]:
    return (_bytes(array).data for array in arrays)


def _write(file: int, buffers: Iterable[memoryview]) -> int:
    total = 0
    for views in _batches(buffers):
        while views:
            done = os.writev(file, views)
            total += done
            views = _behind(views, done)
    return total


def _read(file: int, at: int, buffers: Iterable[memoryview]) -> int:
    place = at
    for views in _batches(buffers):
        while views:
            done = os.preadv(file, views, place)
            if not done:
                raise Torn(f"ends at {place}")
            place += done
            views = _behind(views, done)
    return place - at


def _batches(buffers: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    views = (buffer for buffer in buffers if len(buffer))
    while batch := list(islice(views, _VECTORS_MAX)):
        yield batch


def _behind(views: list[memoryview], done: int) -> list[memoryview]:
    """What is left of `views` once `done` bytes are."""
    for index, view in enumerate(views):
        if done < len(view):
            return [view[done:], *views[index + 1 :]]
        done -= len(view)
    return []

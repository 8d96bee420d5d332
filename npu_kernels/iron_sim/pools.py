"""Memory between two movers: a ring of objects that writers give and readers take, each in turn.

Invariant: a reader is never ahead of a writer, a writer never more than `depth` ahead of a reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from npu_kernels.aie_host import poisoned
from npu_kernels.iron_sim.record import Tile, Type
from npu_kernels.iron_sim.walk import WORD_BYTES, Walk, Words

if TYPE_CHECKING:
    from npu_kernels.iron_sim.streams import Stream


class Pool:
    def __init__(
        self, name: str, tile: Tile, type_: Type, depth: int, writers: list[str], readers: list[str]
    ) -> None:
        self.name, self.tile, self.type, self.depth = name, tile, type_, depth
        self.writers, self.readers = writers, readers  # whose turn it is, for those who must say
        self.written = [0] * len(writers)
        self.read = [0] * len(readers)
        self.streams: list[Stream] = []  # that begin or end here
        self._slots = [poisoned(type_.nbytes) for _ in range(depth)]

    def room(self, writer: int) -> int:
        return min(self.read) + self.depth - self.written[writer]

    def there(self, reader: int) -> int:
        return min(self.written) - self.read[reader]

    def give(self, writer: int, count: int = 1) -> None:
        self.written[writer] += count
        self._changed()

    def take(self, reader: int, count: int = 1) -> None:
        self.read[reader] += count
        self._changed()

    def _changed(self) -> None:
        for stream in self.streams:
            stream.wake()

    def array(self, number: int) -> np.ndarray[Any, Any]:
        """The object, as a core sees it."""
        slot = self._slots[number % self.depth]
        return slot.view(self.type.dtype).reshape(self.type.shape)

    def words(self, number: int) -> Words:
        """The object, as a DMA sees it."""
        return self._slots[number % self.depth].view(np.uint32)

    def lagging(self, readers: bool) -> list[str]:
        names, counts = (self.readers, self.read) if readers else (self.writers, self.written)
        return [name for name, n in zip(names, counts, strict=True) if n == min(counts)]

    @property
    def nbytes(self) -> int:
        return self.depth * self.type.nbytes


class Access:
    """A DMA channel's view of a pool: which words of each object, in which order."""

    def __init__(self, pool: Pool, number: int, walk: Walk) -> None:
        self.pool, self.number = pool, number
        self.count = walk.count
        self.places = walk.at(0, walk.count)

    def belongs_to(self, stream: Stream) -> None:
        self.pool.streams.append(stream)


class PoolSource(Access):
    """Reads objects and sends them, word by word."""

    _object: Words | None = None
    _sent = 0

    def take(self, room: int) -> Words | None:
        if self._object is None:
            if self.pool.there(self.number) < 1:
                return None
            self._object = self.pool.words(self.pool.read[self.number])[self.places]
            self._sent = 0
        part = self._object[self._sent : self._sent + room]
        self._sent += len(part)
        if self._sent == self.count:
            self._object = None
            self.pool.take(self.number)
        return part

    @property
    def partial(self) -> int:
        return self._sent if self._object is not None else 0


class PoolSink(Access):
    """Gathers words into objects."""

    def __init__(self, pool: Pool, number: int, walk: Walk) -> None:
        super().__init__(pool, number, walk)
        self._gathered = np.empty(self.count, np.uint32)
        self.partial = 0

    def room(self) -> int:
        return self.count - self.partial if self.pool.room(self.number) > 0 else 0

    def put(self, words: Words) -> None:
        self._gathered[self.partial : self.partial + len(words)] = words
        self.partial += len(words)
        if self.partial == self.count:
            self.pool.words(self.pool.written[self.number])[self.places] = self._gathered
            self.pool.give(self.number)
            self.partial = 0


def words_of(type_: Type) -> int:
    return type_.nbytes // WORD_BYTES

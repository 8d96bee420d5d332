"""What moves: a fifo's words from one source to all its sinks in step, and the host's end of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from npu_kernels.iron_sim.faults import DesignFault
from npu_kernels.iron_sim.limits import QUEUE_DEPTH
from npu_kernels.iron_sim.pools import PoolSink, PoolSource
from npu_kernels.iron_sim.walk import Walk, Words

CHUNK_WORDS = 1 << 16  # the most that is copied at once


class Move:
    """One started transfer between host memory and a fifo."""

    def __init__(self, memory: Words, walk: Walk, name: str) -> None:
        self.memory, self.walk, self.name = memory, walk, name
        self.moved = 0

    @property
    def left(self) -> int:
        return self.walk.count - self.moved

    @property
    def done(self) -> bool:
        return not self.left


class HostEnd:
    """A shim channel and its queue of started transfers, worked off in order."""

    def __init__(self, fifo: str) -> None:
        self.fifo = fifo
        self.queue: deque[Move] = deque()
        self._stream: Stream | None = None

    def belongs_to(self, stream: Stream) -> None:
        self._stream = stream

    def push(self, move: Move) -> None:
        if len(self.queue) == QUEUE_DEPTH:
            raise DesignFault(
                "queue-depth",
                self.fifo,
                f"{move.name} is start {QUEUE_DEPTH + 1} with none awaited; the shim drops it",
                "await the oldest transfer first",
            )
        if move.left:
            self.queue.append(move)
            assert self._stream is not None
            self._stream.wake()

    def _advance(self, words: int) -> None:
        self.queue[0].moved += words
        if self.queue[0].done:
            self.queue.popleft()

    @property
    def partial(self) -> int:
        return self.queue[0].moved if self.queue else 0


class HostSource(HostEnd):
    def take(self, room: int) -> Words | None:
        if not self.queue:
            return None
        move = self.queue[0]
        count = min(room, move.left, CHUNK_WORDS)
        part = move.memory[move.walk.at(move.moved, move.moved + count)]
        self._advance(count)
        return part


class HostSink(HostEnd):
    def room(self) -> int:
        return self.queue[0].left if self.queue else 0

    def put(self, words: Words) -> None:
        move = self.queue[0]
        move.memory[move.walk.at(move.moved, move.moved + len(words))] = words
        self._advance(len(words))


class Stream:
    """`woken`: those at an end of which something has changed since they last ran."""

    def __init__(
        self,
        fifo: str,
        source: PoolSource | HostSource,
        sinks: Sequence[PoolSink | HostSink],
        woken: deque[Stream],
    ) -> None:
        self.fifo, self.source, self.sinks = fifo, source, tuple(sinks)
        self.words = 0
        self._woken, self._awake = woken, False
        self.wake()
        for end in (source, *sinks):
            end.belongs_to(self)

    def wake(self) -> None:
        if not self._awake:
            self._awake = True
            self._woken.append(self)

    def run(self) -> bool:
        """Moves all it can; whether that was anything. Its own moves do not wake it."""
        moved = False
        while room := min(sink.room() for sink in self.sinks):
            part = self.source.take(room)
            if part is None:
                break
            for sink in self.sinks:
                sink.put(part)
            self.words += len(part)
            moved = True
        self._awake = False
        return moved

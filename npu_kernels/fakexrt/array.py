"""Executes a stream's operations: bytes between buffers and the shims of an array.

The sequence is as quick as it can be and the array as slow: nothing moves until the stream waits.
So queues are as full, and descriptors as long in use, as they can get.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from npu_kernels.txn import Geometry, Operation, StreamFault, Words
from npu_kernels.txn.check import buffer_offset
from npu_kernels.txn.operations import Custom, LoadPdi, MaskPoll, UpdateRegister
from npu_kernels.txn.shim import (
    QUEUE_DEPTH,
    Awaited,
    Channel,
    Described,
    Poked,
    Shims,
    Started,
    Task,
    Transfer,
)

CHUNK_WORDS = 1 << 16


class Array(Protocol):
    """A configured array, seen from its shims. What it holds stays from dispatch to dispatch."""

    def write(self, column: int, channel: int, data: Words) -> int:
        """Words to the stream of MM2S `channel`; how many of them it took, maybe none."""

    def read(self, column: int, channel: int, count: int) -> Words:
        """Up to `count` words from the stream of S2MM `channel`, maybe none."""

    def poke(self, column: int, row: int, offset: int, value: int) -> None:
        """A word of memory, a lock, or a register that is no shim channel's."""

    def standstill(self) -> str:
        """Who waits for whom, once nothing moves."""

    def balanced(self) -> None:
        """Raises if a dispatch that has ended left something that the next one would meet."""

    def close(self) -> None:
        """It is configured no more."""


@dataclass(frozen=True, slots=True)
class Touched:
    """Bytes [start, stop) of an argument, which the array read or wrote."""

    argument: int
    start: int
    stop: int
    written: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    bytes_read: int
    bytes_written: int
    touched: tuple[Touched, ...]
    standstill: str | None = None  # why it never ended


class Standstill(Exception):
    pass


def execute(
    operations: Iterable[Operation], device: Geometry, array: Array, arguments: Sequence[Words]
) -> Outcome:
    """`arguments`: what the device sees of each buffer."""
    return _Execution(device, array, arguments).run(operations)


class _Segment:
    """One pass of a descriptor over its buffer."""

    def __init__(self, transfer: Transfer, repetition: int, words: Words) -> None:
        patch, self.descriptor = transfer.patch, transfer.descriptor
        offset = buffer_offset(patch.argument, patch.offset) // 4
        self.base = offset + self.descriptor.iteration_offset(repetition)
        self._words = words

    def places(self, start: int, stop: int) -> slice | np.ndarray[tuple[int], np.dtype[np.int64]]:
        if self.descriptor.linear:
            return slice(self.base + start, self.base + stop)
        return self.base + self.descriptor.offsets(start, stop)

    def take(self, start: int, stop: int) -> Words:
        return np.array(self._words[self.places(start, stop)])

    def put(self, start: int, part: Words) -> None:
        self._words[self.places(start, start + len(part))] = part


class _Flying:
    """A started task and how far it is."""

    def __init__(self, task: Task, arguments: Sequence[Words]) -> None:
        self.task = task
        self._segments = deque(
            _Segment(transfer, repetition, arguments[transfer.patch.argument])
            for repetition in range(task.repeats)
            for transfer in task.transfers
        )
        self._moved = 0  # words of the first segment
        self.words = 0

    @property
    def done(self) -> bool:
        return not self._segments

    def advance(self, array: Array) -> bool:
        segment, channel = self._segments[0], self.task.channel
        count = min(segment.descriptor.length - self._moved, CHUNK_WORDS)
        if channel.fills:
            part = segment.take(self._moved, self._moved + count)
            moved = array.write(channel.column, channel.number, part)
        else:
            part = array.read(channel.column, channel.number, count)
            moved = len(part)
            segment.put(self._moved, part)
        self._moved += moved
        self.words += moved
        if self._moved == segment.descriptor.length:
            self._segments.popleft()
            self._moved = 0
        return moved > 0


class _Execution:
    def __init__(self, device: Geometry, array: Array, arguments: Sequence[Words]) -> None:
        self._shims, self._array, self._arguments = Shims(device), array, arguments
        self._queues: dict[Channel, deque[_Flying]] = defaultdict(deque)
        self._tokens: Counter[Channel] = Counter()
        self._bytes: Counter[bool] = Counter()  # by whether they were read
        self._touched: list[Touched] = []

    def run(self, operations: Iterable[Operation]) -> Outcome:
        standstill = None
        try:
            for number, operation in enumerate(operations):
                self._apply(operation, f"operation {number}")
            self._settle()
            self._ended()
            self._array.balanced()
        except Standstill as why:
            standstill = str(why)
        return Outcome(self._bytes[True], self._bytes[False], tuple(self._touched), standstill)

    def _apply(self, operation: Operation, where: str) -> None:
        if isinstance(operation, Custom | LoadPdi | MaskPoll | UpdateRegister):
            raise NotImplementedError(f"{where}: fakexrt does not execute {operation}")
        for event in self._shims.apply(operation, where):
            if isinstance(event, Described):
                self._unused(event, where)
            elif isinstance(event, Started):
                self._start(event.task, where)
            elif isinstance(event, Awaited):
                self._wait(event.channel)
            elif isinstance(event, Poked):
                place = event.place
                self._array.poke(place.column, place.row, place.offset, event.value)

    def _unused(self, event: Described, where: str) -> None:
        for queue in self._queues.values():
            for flying in queue:
                if flying.task.uses(event.column, event.number):
                    what = f"{flying.task} is not over, and its descriptor changes"
                    raise StreamFault("descriptor-reuse", where, what)

    def _start(self, task: Task, where: str) -> None:
        queue = self._queues[task.channel]
        if len(queue) == QUEUE_DEPTH:
            what = f"start {QUEUE_DEPTH + 1} on {task.channel}: the shim drops it"
            raise StreamFault("queue-depth", where, what, "await the oldest first")
        for transfer in task.transfers:
            if transfer.descriptor.locked:
                raise NotImplementedError(f"{where}: fakexrt has no locks of shims: {task}")
            self._touched.append(_touched(transfer, task))
        queue.append(_Flying(task, self._arguments))

    def _wait(self, channel: Channel) -> None:
        self._settle()
        if not self._tokens[channel]:
            raise Standstill(f"no token comes from {channel}: {self._array.standstill()}")
        self._tokens[channel] -= 1

    def _settle(self) -> None:
        """Everything moves until nothing can."""
        moving = True
        while moving:
            moving = False
            for channel, queue in self._queues.items():
                while queue and queue[0].advance(self._array):
                    moving = True
                    if queue[0].done:
                        self._end(channel, queue.popleft())

    def _end(self, channel: Channel, flying: _Flying) -> None:
        self._bytes[channel.fills] += flying.words * 4
        self._tokens[channel] += flying.task.token

    def _ended(self) -> None:
        for queue in self._queues.values():
            for flying in queue:
                what = f"{flying.task} moved {flying.words} words and waits for more"
                why = f"{what}; {self._array.standstill()}"
                raise StreamFault("left-over", "end", why, "what is left meets the next dispatch")


def _touched(transfer: Transfer, task: Task) -> Touched:
    descriptor, patch = transfer.descriptor, transfer.patch
    passes = range(min(task.repeats, descriptor.iteration.size))
    most = max(map(descriptor.iteration_offset, passes))
    start = buffer_offset(patch.argument, patch.offset)
    stop = start + 4 * (descriptor.last + most + 1)
    return Touched(patch.argument, start, stop, not task.channel.fills)

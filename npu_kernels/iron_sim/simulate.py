"""Runs a record: cores, streams, and the runtime sequence of each dispatch.

The sequence starts transfers as early as it may, and nothing else moves until it waits: the queues
are as full as they can get. What the array does between two waits does not depend on the order, for
each object of a pool has its writers and its readers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np

from npu_kernels.aie_host import poisoned
from npu_kernels.iron_sim.calls import Kernels, caller
from npu_kernels.iron_sim.cores import BarrierLock, Consuming, Core, Producing, Wait
from npu_kernels.iron_sim.faults import Deadlock, DesignFault
from npu_kernels.iron_sim.layout import Lock, layout
from npu_kernels.iron_sim.lower import lower, stream_name
from npu_kernels.iron_sim.record import (
    Await,
    Barrier,
    Buffer,
    Kernel,
    Port,
    Push,
    Record,
    SetBarrier,
    Transfer,
    Worker,
    Write,
)
from npu_kernels.iron_sim.streams import HostSink, HostSource, Move
from npu_kernels.iron_sim.value import Memory
from npu_kernels.iron_sim.waits import SEQUENCE, Standstill
from npu_kernels.iron_sim.walk import Walk, Words, walk_of


@dataclass(frozen=True, slots=True)
class Counters:
    """What one dispatch did."""

    bytes_read: int  # from host memory
    bytes_written: int
    transfers: int
    kernel_calls: Mapping[str, int] = field(default_factory=dict)


class Array:
    """A configured array. What its cores hold stays from dispatch to dispatch."""

    def __init__(self, record: Record, kernels: Kernels) -> None:
        self.record = record
        self._lowered = lower(record)
        self._streams = {stream_name(stream.fifo): stream for stream in self._lowered.streams}
        self._memories = {buffer.name: _memory(buffer) for buffer in record.buffers}
        self._locks: dict[Lock, BarrierLock] = {}
        self.layout = layout(record)
        self._calls: Counter[str] = Counter()
        self._writes = 0  # of parameters and barriers, which cores may look at in between
        self._cores: dict[str, Core] = {}
        try:
            for worker in record.workers:
                self._configure(worker, kernels)
            self.settle()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Array:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for core in self._cores.values():
            core.stop()

    # Configuration

    def _configure(self, worker: Worker, kernels: Kernels) -> None:
        body = worker.body
        if body is None or not (worker.sites.waits or not worker.forever):
            return  # an idle core
        core = self._cores[worker.name] = Core(worker.name, self._move)
        arguments = tuple(self._given(argument, core, kernels) for argument in worker.arguments)

        def program() -> None:
            body(*arguments)
            while worker.forever:
                if not core.waited:
                    self._spin(core)
                core.waited = 0
                body(*arguments)

        core.start(program)

    def _spin(self, core: Core) -> None:
        """A pass that waited for nothing would be the same again, until a parameter changes."""
        seen = self._writes
        core.until(Wait(lambda: self._writes != seen, "loops without waiting for anything"))

    def _given(self, argument: Any, core: Core, kernels: Kernels) -> Any:
        """What a body gets for an argument of its worker."""
        if isinstance(argument, Port):
            pool, number = self._lowered.ports[argument]
            fifo = self.record.fifo(argument.fifo)
            if argument.produces:
                return Producing(core, pool, number, fifo.producer.depth, fifo.name)
            return Consuming(core, pool, number, fifo.consumers[argument.consumer].depth, fifo.name)
        if isinstance(argument, Buffer):
            return self._memories[argument.name]
        if isinstance(argument, Kernel):
            return caller(argument, kernels, self._count)
        if isinstance(argument, Barrier):
            lock = BarrierLock(core, argument)
            self._locks[Lock(argument.name, core.name)] = lock
            return lock
        if isinstance(argument, list | tuple):
            return type(argument)(self._given(item, core, kernels) for item in argument)
        return argument

    def _count(self, symbol: str) -> None:
        self._calls[symbol] += 1

    # What the instruction stream does

    def push(self, fifo: str, memory: Words, walk: Walk, name: str) -> Move:
        """Starts a transfer between memory and the fifo's host end."""
        move = Move(memory, walk, name)
        self._lowered.hosts[fifo].push(move)
        return move

    def write(self, buffer: str, index: int, value: int) -> None:
        """A word of a buffer, as the bits of an int32."""
        self._memories[buffer].array.reshape(-1).view(np.int32)[index] = value
        self._writes += 1

    def set_barrier(self, barrier: str, value: int) -> None:
        for where, lock in self._locks.items():
            if where.barrier == barrier:
                lock.value = value
        self._writes += 1

    def poke(self, column: int, row: int, offset: int, value: int) -> None:
        """write or set_barrier, as a stream names them: by an address in a tile."""
        there = self.layout.at(column, row, offset)
        if not isinstance(there, Lock):
            self.write(*there, np.uint32(value).astype(np.int32).item())
        elif there in self._locks:
            self._locks[there].value = value
            self._writes += 1

    def settle(self) -> None:
        """Everything goes on until it waits."""
        moving = True
        while moving:
            while self._move():
                pass
            moving = False
            for core in self._cores.values():
                if core.runnable:
                    core.resume()
                    moving = True

    def _move(self) -> bool:
        woken, moved = self._lowered.woken, False
        while woken and not moved:
            moved = woken.popleft().run()
        return moved

    def wait(self, move: Move, fifo: str) -> None:
        self.settle()
        if not move.done:
            raise self.deadlock(fifo)

    def deadlock(self, awaited: str | None) -> Deadlock:
        """Who waits for whom, now that the sequence waits for this fifo's transfer."""
        return Standstill(self._streams, self._cores, awaited).deadlock(SEQUENCE)

    def host(self, fifo: str) -> HostSource | HostSink:
        return self._lowered.hosts[fifo]

    # A dispatch

    def dispatch(self, buffers: Sequence[np.ndarray[Any, Any]]) -> Counters:
        """Runs the record's sequence; a fault if it ends with anything still on its way."""
        memories = [
            _words(buffer, argument.nbytes, argument.name)
            for buffer, argument in zip(buffers, self.record.arguments, strict=True)
        ]
        self._calls.clear()
        before = self._traffic()
        moves: dict[int, Move] = {}
        for step in self.record.sequence:
            if isinstance(step, Push):
                moves[step.transfer.number] = self._start(step.transfer, memories)
            elif isinstance(step, Await):
                self.wait(moves[step.transfer.number], step.transfer.fifo)
            elif isinstance(step, Write):
                self.write(step.buffer, step.index, step.value)
            elif isinstance(step, SetBarrier):
                self.set_barrier(step.barrier, step.value)
        self.settle()
        self.balanced()
        read, written = (now - then for now, then in zip(self._traffic(), before, strict=True))
        return Counters(read, written, len(moves), dict(self._calls))

    def _start(self, transfer: Transfer, memories: list[Words]) -> Move:
        argument = self.record.arguments[transfer.argument]
        kind = "fill" if transfer.fills else "drain"
        name = f"{kind} {transfer.number} of '{transfer.fifo}'"
        return self.push(
            transfer.fifo, memories[transfer.argument], transfer_walk(transfer, argument), name
        )

    def _traffic(self) -> tuple[int, int]:
        hosts = self._lowered.hosts
        streams = [s for s in self._lowered.streams if s.fifo in hosts]
        totals = [0, 0]
        for stream in streams:
            totals[not isinstance(stream.source, HostSource)] += stream.words * 4
        return totals[0], totals[1]

    def balanced(self) -> None:
        """A fault if a dispatch left anything behind: it would meet the next one."""
        for host in self._lowered.hosts.values():
            if host.queue:
                still = Standstill(self._streams, self._cores, None)
                raise still.deadlock(stream_name(host.fifo))
        for stream in self._lowered.streams:
            partial = max([stream.source.partial, *(s.partial for s in stream.sinks)])
            if partial:
                what = f"{partial * 4} bytes of an object, not the whole"
                raise DesignFault("balance", stream.fifo, what)
        left = [
            f"'{pool.name}' {max(pool.written)} produced, {min(pool.read)} consumed"
            for pool in self._lowered.pools
            if max(pool.written) != min(pool.read)
        ]
        if left:
            fix = "each dispatch must consume what it produces"
            raise DesignFault("balance", "the end of a dispatch", "; ".join(left), fix)


def _memory(buffer: Buffer) -> Memory:
    array = poisoned(buffer.type.nbytes).view(buffer.type.dtype).reshape(buffer.type.shape)
    if buffer.initial is not None:
        array[...] = buffer.initial
    return Memory(buffer.name, array)


def _words(buffer: np.ndarray[Any, Any], nbytes: int, name: str) -> Words:
    if buffer.nbytes != nbytes or not buffer.flags.c_contiguous:
        what = f"{buffer.nbytes} bytes given, {nbytes} declared, contiguous"
        raise DesignFault("argument-size", name, what)
    return buffer.reshape(-1).view(np.uint32)


def transfer_walk(transfer: Transfer, argument: Any) -> Walk:
    kind = "fill" if transfer.fills else "drain"
    where = f"{kind} {transfer.number} of '{transfer.fifo}'"
    walk = walk_of(
        transfer.offset, transfer.sizes, transfer.strides, argument.dtype.itemsize, where
    )
    if walk.last * 4 >= argument.nbytes:
        what = f"word {walk.last} of {argument.nbytes // 4} in {argument.name}"
        raise DesignFault("transfer-bounds", where, what)
    return walk


def simulate(record: Record, buffers: Sequence[np.ndarray[Any, Any]], kernels: Kernels) -> Counters:
    """One dispatch on a fresh array."""
    with Array(record, kernels) as array:
        return array.dispatch(buffers)

"""Addresses: what the instruction stream names by number, and what stands there.

Ours need not be aiecc's; whoever runs a stream of ours reads the same layout.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from npu_kernels.iron_sim.channels import channels
from npu_kernels.iron_sim.faults import DesignFault
from npu_kernels.iron_sim.limits import CORE_DATA_BYTES, L1_MULTIPLE_BYTES, STACK_BYTES
from npu_kernels.iron_sim.lower import lower
from npu_kernels.iron_sim.record import Barrier, Buffer, Record, Tile, flat

LOCK_BASE, LOCK_BYTES = 0x1F000, 0x10  # of a core


@dataclass(frozen=True, slots=True)
class Host:
    """A shim's channel: MM2S fills a fifo from host memory, S2MM drains one."""

    column: int
    fills: bool
    channel: int


@dataclass(frozen=True, slots=True)
class Lock:
    """A worker's lock of a barrier."""

    barrier: str
    worker: str


@dataclass(frozen=True, slots=True)
class Layout:
    hosts: dict[str, Host]  # by fifo
    buffers: dict[str, tuple[Tile, int]]  # where each begins in its tile's data memory
    locks: dict[Lock, tuple[Tile, int]]
    sizes: dict[str, int]  # of the buffers, bytes

    def fifo_at(self, column: int, fills: bool, channel: int) -> str:
        wanted = Host(column, fills, channel)
        for fifo, host in self.hosts.items():
            if host == wanted:
                return fifo
        way = "MM2S" if fills else "S2MM"
        raise DesignFault("no-fifo", f"{way}{channel} of column {column}", "no fifo ends there")

    def at(self, column: int, row: int, offset: int) -> tuple[str, int] | Lock:
        """A word of a buffer (its name, which word) or a lock; nothing else may be written."""
        tile = Tile(column, row)
        for lock, place in self.locks.items():
            if place == (tile, offset):
                return lock
        for name, (where, start) in self.buffers.items():
            if where == tile and start <= offset < start + self.sizes[name]:
                return name, (offset - start) // 4
        what = f"0x{offset:05x} is no parameter and no barrier"
        raise DesignFault("no-parameter", f"tile {tile}", what)


@lru_cache(maxsize=64)  # an array is configured again and again
def layout(record: Record) -> Layout:
    hosts = {
        channel.fifo: Host(channel.tile.column, not channel.into_memory, channel.number)
        for channel in channels(record)
        if channel.end.host
    }
    buffers, taken = _buffers(record)
    sizes = {buffer.name: buffer.type.nbytes for buffer in record.buffers}
    return Layout(hosts, buffers, _locks(record, taken), sizes)


def _buffers(record: Record) -> tuple[dict[str, tuple[Tile, int]], Counter[Tile]]:
    """Stack, objects, buffers, one behind the other; and the locks that the objects take."""
    used: Counter[Tile] = Counter()
    locks: Counter[Tile] = Counter()
    for worker in record.workers:
        used[worker.tile] += worker.stack_bytes or STACK_BYTES
    for pool in lower(record).pools:
        used[pool.tile] += pool.depth * _rounded(pool.type.nbytes)
        locks[pool.tile] += 2 * max(len(pool.writers), len(pool.readers))
    places: dict[str, tuple[Tile, int]] = {}
    for buffer in record.buffers:
        places[buffer.name] = (buffer.tile, _begin(used, buffer))
    return places, locks


def _begin(used: Counter[Tile], buffer: Buffer) -> int:
    begin = _rounded(used[buffer.tile])
    used[buffer.tile] = begin + _rounded(buffer.type.nbytes)
    if used[buffer.tile] > CORE_DATA_BYTES:
        raise DesignFault("l1-data", f"core {buffer.tile}", f"no room for {buffer.name}")
    return begin


def _locks(record: Record, taken: Counter[Tile]) -> dict[Lock, tuple[Tile, int]]:
    places: dict[Lock, tuple[Tile, int]] = {}
    for worker in record.workers:
        for argument in flat(worker.arguments):
            if isinstance(argument, Barrier):
                number = taken[worker.tile]
                taken[worker.tile] += 1
                offset = LOCK_BASE + LOCK_BYTES * number
                places[Lock(argument.name, worker.name)] = (worker.tile, offset)
    return places


def _rounded(nbytes: int) -> int:
    return -(-nbytes // L1_MULTIPLE_BYTES) * L1_MULTIPLE_BYTES

"""A record as the array holds it: pools of objects, streams between them and the host.

A fifo is a stream from its producer to all its consumers. Each end on a core has a pool of its own,
unless both cores reach one memory: then there is one pool and no stream. Fifos that meet in a link
share its pool.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from npu_kernels.iron_sim.faults import DesignFault, not_simulated
from npu_kernels.iron_sim.pools import Pool, PoolSink, PoolSource
from npu_kernels.iron_sim.record import Dims, End, Fifo, Link, Part, Port, Record, Type
from npu_kernels.iron_sim.streams import HostSink, HostSource, Stream
from npu_kernels.iron_sim.walk import Walk, walk_of


@dataclass(frozen=True, slots=True)
class Lowered:
    pools: tuple[Pool, ...]
    streams: tuple[Stream, ...]
    ports: dict[Port, tuple[Pool, int]]  # a worker's end: the pool, and its number there
    hosts: dict[str, HostSource | HostSink]  # by fifo
    woken: deque[Stream]


def part_walk(fifo: Fifo, offset: int, dims: Dims, where: str) -> Walk:
    """Where a fifo's object lies in the larger one, in the order of the stream."""
    order = dims or ((fifo.type.size, 1),)
    walk = walk_of(
        offset, [n for n, _ in order], [s for _, s in order], fifo.type.dtype.itemsize, where
    )
    if walk.count * 4 != fifo.type.nbytes:
        what = f"dims of {walk.count * 4} bytes for an object of {fifo.type.nbytes}"
        raise DesignFault("dims-size", where, what)
    return walk


def lower(record: Record) -> Lowered:
    return _Lowering(record).lowered()


class _Lowering:
    def __init__(self, record: Record) -> None:
        self._record = record
        self._pools: list[Pool] = []
        self._ports: dict[Port, tuple[Pool, int]] = {}
        self._hosts: dict[str, HostSource | HostSink] = {}
        self._woken: deque[Stream] = deque()
        # What a stream reads and writes, once the fifo's links have made their pools.
        self._sources: dict[str, PoolSource] = {}
        self._sinks: dict[tuple[str, str], PoolSink] = {}

    def lowered(self) -> Lowered:
        for link in self._record.links:
            self._link(link)
        streams = []
        for fifo in self._record.fifos:
            if fifo.shared:
                self._shared(fifo)
            else:
                streams.append(self._stream(fifo))
        return Lowered(tuple(self._pools), tuple(streams), self._ports, self._hosts, self._woken)

    def _pool(self, pool: Pool) -> Pool:
        if pool.type.nbytes % 4:
            raise DesignFault("granularity", pool.name, f"objects of {pool.type.nbytes} bytes")
        self._pools.append(pool)
        return pool

    def _link(self, link: Link) -> None:
        joins = len(link.sources) > 1
        whole = self._record.fifo((link.destinations if joins else link.sources)[0].fifo)
        depth = whole.producer.depth if joins else _consumer(whole, link).depth
        names = [[stream_name(part.fifo) for part in s] for s in (link.sources, link.destinations)]
        pool = self._pool(Pool(link.name, link.tile, whole.type, depth, names[0], names[1]))
        if not joins and len(link.destinations) == 1:
            self._same_size(link)
        for number, part in enumerate(link.sources):
            fifo = self._record.fifo(part.fifo)
            walk = self._walk(link, part, _consumer(fifo, link).dims, pool.type)
            self._sinks[part.fifo, link.name] = PoolSink(pool, number, walk)
        for number, part in enumerate(link.destinations):
            walk = self._walk(link, part, self._record.fifo(part.fifo).producer.dims, pool.type)
            self._sources[part.fifo] = PoolSource(pool, number, walk)
        self._covers(link, link.sources if joins else link.destinations, whole.type)

    def _walk(self, link: Link, part: Part, dims: Dims, whole: Type) -> Walk:
        fifo = self._record.fifo(part.fifo)
        walk = part_walk(fifo, part.offset, dims, f"{link.name}, {fifo.name}")
        if walk.last * 4 >= whole.nbytes:
            what = f"{fifo.name} reaches past an object of {whole.nbytes} bytes"
            raise DesignFault("link-bounds", link.name, what)
        return walk

    def _same_size(self, link: Link) -> None:
        ends = [self._record.fifo(p.fifo) for p in (*link.sources, *link.destinations)]
        if any(a.type.nbytes != b.type.nbytes for a, b in pairwise(ends)):
            raise not_simulated(f"forward of '{ends[0].name}' with an obj_type of another size")

    def _covers(self, link: Link, parts: tuple[Part, ...], whole: Type) -> None:
        nbytes = sum(self._record.fifo(part.fifo).type.nbytes for part in parts)
        if nbytes > whole.nbytes:
            what = f"parts of {nbytes} bytes of an object of {whole.nbytes}"
            raise DesignFault("link-bounds", link.name, what)

    def _shared(self, fifo: Fifo) -> None:
        ends = (fifo.producer, fifo.consumers[0])
        depth = max(end.depth for end in ends)
        users = [str(end.worker) for end in ends]
        # A core reaches its own memory and its western, northern and southern neighbours'.
        tile = min((end.tile for end in ends), key=lambda tile: tile.column)
        pool = self._pool(Pool(fifo.name, tile, fifo.type, depth, users[:1], users[1:]))
        self._ports[Port(fifo.name, True)] = (pool, 0)
        self._ports[Port(fifo.name, False, 0)] = (pool, 0)

    def _stream(self, fifo: Fifo) -> Stream:
        name = stream_name(fifo.name)
        walk = part_walk(fifo, 0, fifo.producer.dims, fifo.name)
        if fifo.producer.host:
            source: PoolSource | HostSource = HostSource(fifo.name)
            if fifo.producer.dims:
                raise not_simulated(f"dims_to_stream of '{fifo.name}', which the host fills")
            self._hosts[fifo.name] = source  # type: ignore[assignment]
        elif fifo.producer.link:
            source = self._sources[fifo.name]
        else:
            end = fifo.producer
            users = [str(end.worker)], [name]
            pool = self._pool(Pool(fifo.name, end.tile, fifo.type, end.depth, *users))
            self._ports[Port(fifo.name, True)] = (pool, 0)
            source = PoolSource(pool, 0, walk)
        sinks = [self._sink(fifo, n) for n in range(len(fifo.consumers))]
        return Stream(fifo.name, source, sinks, self._woken)

    def _sink(self, fifo: Fifo, number: int) -> PoolSink | HostSink:
        end = fifo.consumers[number]
        if end.host:
            if end.dims:
                raise not_simulated(f"dims_from_stream of '{fifo.name}', which the host drains")
            if fifo.name in self._hosts:
                raise not_simulated(f"a fill and a drain of one fifo, '{fifo.name}'")
            sink = HostSink(fifo.name)
            self._hosts[fifo.name] = sink
            return sink
        if end.link:
            return self._sinks[fifo.name, end.link]
        users = [stream_name(fifo.name)], [str(end.worker)]
        pool = self._pool(Pool(fifo.name, end.tile, fifo.type, end.depth, *users))
        self._ports[Port(fifo.name, False, number)] = (pool, 0)
        return PoolSink(pool, 0, part_walk(fifo, 0, end.dims, fifo.name))


def _consumer(fifo: Fifo, link: Link) -> End:
    return next(end for end in fifo.consumers if end.link == link.name)


def stream_name(fifo: str) -> str:
    return f"fifo '{fifo}'"

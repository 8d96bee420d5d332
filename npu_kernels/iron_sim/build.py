"""From what a design said to the record of it: everything found, placed and named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from npu_kernels.iron_sim import record
from npu_kernels.iron_sim.aie.dataflow import HOST, ObjectFifo, ObjectFifoHandle, ObjectFifoLink
from npu_kernels.iron_sim.aie.device import Device, pinned
from npu_kernels.iron_sim.aie.runtime import Runtime
from npu_kernels.iron_sim.aie.worker import (
    Buffer,
    Kernel,
    Worker,
    WorkerRuntimeBarrier,
)
from npu_kernels.iron_sim.faults import DesignFault
from npu_kernels.iron_sim.place import Floor
from npu_kernels.iron_sim.sites import sites_of


def build(device: Device, runtime: Runtime, workers: list[Worker]) -> record.Record:
    return _Building(device, runtime, workers).recorded()


class _Building:
    def __init__(self, device: Device, runtime: Runtime, workers: list[Worker]) -> None:
        self._device = device.recorded()
        self._floor = Floor(self._device)
        self._runtime = runtime
        self._workers = list(dict.fromkeys([*workers, *runtime.workers]))
        self._sequence = runtime.written()
        self._places: dict[int, record.Tile] = {}  # by id of a Worker, link or host handle
        self._fifos = self._found()

    def recorded(self) -> record.Record:
        self._place()
        self._names = {id(w): self._worker_name(w) for w in self._workers}
        self._buffers = self._own_buffers()
        fifos = {fifo.name: self._fifo(fifo) for fifo in self._fifos}
        if len(fifos) != len(self._fifos):
            names = [fifo.name for fifo in self._fifos]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise DesignFault("names", ", ".join(twice), "more than one fifo has this name")
        barriers = {
            b.recorded.name: b.recorded
            for worker in self._workers
            for b in worker.given(WorkerRuntimeBarrier)
        }
        return record.Record(
            self._device,
            tuple(
                record.Argument(f"argument {data.number}", data.type) for data in self._runtime.data
            ),
            tuple(fifos.values()),
            tuple(self._link(link) for link in self._links()),
            tuple(self._worker(worker, fifos) for worker in self._workers),
            tuple(self._buffers.values()),
            tuple(barriers.values()),
            tuple(self._sequence.steps),
        )

    # What there is

    def _found(self) -> list[ObjectFifo]:
        """Every fifo that the workers, the sequence, or a link between them reaches."""
        handles = [h for w in self._workers for h in w.given(ObjectFifoHandle)]
        fifos: dict[int, ObjectFifo] = {}
        frontier = [h.fifo for h in (*handles, *self._sequence.handles)]
        while frontier:
            fifo = frontier.pop(0)
            if id(fifo) in fifos:
                continue
            fifos[id(fifo)] = fifo
            for handle in _handles(fifo):
                if isinstance(handle.endpoint, ObjectFifoLink):
                    link = handle.endpoint
                    frontier += [h.fifo for h in (*link.sources, *link.destinations)]
        return list(fifos.values())

    def _links(self) -> list[ObjectFifoLink]:
        ends = [h.endpoint for fifo in self._fifos for h in _handles(fifo)]
        return list(dict.fromkeys(end for end in ends if isinstance(end, ObjectFifoLink)))

    # Where it goes

    def _place(self) -> None:
        self._floor.reserve_cores(worker.pinned for worker in self._workers)
        for worker in self._workers:
            self._places[id(worker)] = self._floor.core(worker.pinned)
        for link in self._links():
            self._places[id(link)] = self._floor.near(
                1, self._column(link), link.pinned, len(link.sources), len(link.destinations)
            )
        for fifo in self._fifos:
            self._place_host_end(fifo)

    def _place_host_end(self, fifo: ObjectFifo) -> None:
        for handle in _handles(fifo):
            if handle.endpoint is HOST and id(fifo) not in self._places:
                others = [h.endpoint for h in _handles(fifo) if h.endpoint is not HOST]
                column = min((self._places[id(end)].column for end in others), default=0)
                self._places[id(fifo)] = self._floor.near(
                    0, column, pinned(handle.tile), not handle.produces, handle.produces
                )

    def _column(self, link: ObjectFifoLink) -> int:
        """The first column of a worker beside the link, or beyond the links beside it."""
        seen: set[int] = set()
        frontier = [link]
        while frontier:
            here = frontier.pop(0)
            seen.add(id(here))
            for fifo in (h.fifo for h in (*here.destinations, *here.sources)):
                for end in (handle.endpoint for handle in _handles(fifo)):
                    if isinstance(end, Worker):
                        return self._places[id(end)].column
                    if isinstance(end, ObjectFifoLink) and id(end) not in seen:
                        frontier.append(end)
        return 0

    # What it is

    def _worker_name(self, worker: Worker) -> str:
        body = getattr(worker.body, "__name__", "idle")
        return f"{body}{self._places[id(worker)]}"

    def _own_buffers(self) -> dict[int, record.Buffer]:
        buffers: dict[int, record.Buffer] = {}
        for worker in self._workers:
            tile = self._places[id(worker)]
            for buffer in worker.given(Buffer):
                known = buffers.get(id(buffer))
                if known is not None and buffer.pinned is None and known.tile != tile:
                    fix = "Buffer(tile=...)"
                    raise DesignFault("buffer-shared", buffer.name, "held by two workers", fix)
                if known is None:
                    buffers[id(buffer)] = record.Buffer(
                        buffer.name, buffer.type, buffer.pinned or tile, buffer.initial
                    )
        return buffers

    def _fifo(self, fifo: ObjectFifo) -> record.Fifo:
        if fifo.producer is None or not fifo.consumers:
            missing = "no prod()" if fifo.producer is None else "no cons()"
            raise DesignFault("fifo-ends", fifo.name, missing)
        consumers = [self._end(fifo, handle) for handle in _consumers(fifo)]
        return record.Fifo(
            fifo.name,
            fifo.type,
            self._end(fifo, fifo.producer),
            tuple(consumers),
            fifo.over_dma,
        )

    def _end(self, fifo: ObjectFifo, handle: ObjectFifoHandle) -> record.End:
        dims = fifo.dims_to_stream if handle.produces else handle.dims
        end = handle.endpoint
        if end is None:
            kind = "prod" if handle.produces else "cons"
            raise DesignFault("fifo-ends", fifo.name, f"a {kind}() that nobody uses")
        if end is HOST:
            return record.End(self._places[id(fifo)], handle.depth, dims=dims)
        tile = self._places[id(end)]
        if isinstance(end, Worker):
            return record.End(tile, handle.depth, worker=self._names[id(end)], dims=dims)
        return record.End(tile, handle.depth, link=end.name, dims=dims)

    def _link(self, link: ObjectFifoLink) -> record.Link:
        return record.Link(
            link.name,
            self._places[id(link)],
            link.parts_of(link.sources),
            link.parts_of(link.destinations),
        )

    def _worker(self, worker: Worker, fifos: dict[str, record.Fifo]) -> record.Worker:
        name = self._names[id(worker)]
        arguments = tuple(self._given(argument) for argument in worker.arguments)

        def end_of(port: record.Port) -> tuple[record.Type, int]:
            fifo = fifos[port.fifo]
            end = fifo.producer if port.produces else fifo.consumers[port.consumer]
            return fifo.type, end.depth

        sites = record.Sites()
        if worker.body is not None:
            sites = sites_of(name, worker.body, arguments, end_of)
        return record.Worker(
            name,
            self._places[id(worker)],
            worker.body,
            arguments,
            worker.stack_size,
            worker.while_true,
            sites,
        )

    def _given(self, argument: Any) -> Any:
        if isinstance(argument, ObjectFifoHandle):
            number = 0 if argument.produces else _consumers(argument.fifo).index(argument)
            return record.Port(argument.name, argument.produces, number)
        if isinstance(argument, Buffer):
            return self._buffers[id(argument)]
        if isinstance(argument, Kernel | WorkerRuntimeBarrier):
            return argument.recorded
        if isinstance(argument, list | tuple):
            return type(argument)(self._given(item) for item in argument)
        return argument


def _handles(fifo: ObjectFifo) -> Iterable[ObjectFifoHandle]:
    return [*([fifo.producer] if fifo.producer else []), *fifo.consumers]


def _consumers(fifo: ObjectFifo) -> list[ObjectFifoHandle]:
    """A sequence that drains calls cons() each time: all of these are one end."""
    consumers: list[ObjectFifoHandle] = []
    for handle in fifo.consumers:
        if handle.endpoint is not HOST or all(h.endpoint is not HOST for h in consumers):
            consumers.append(handle)
    return consumers

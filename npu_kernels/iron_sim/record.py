"""What a design is, once resolved: fifos, links, workers, buffers, kernels, the sequence.

Sizes, offsets and strides are in elements, as IRON states them; `walk.py` turns them into words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

Dims = tuple[tuple[int, int], ...]  # (size, stride), outermost first


@dataclass(frozen=True, slots=True, order=True)
class Tile:
    column: int
    row: int

    @property
    def kind(self) -> Literal["shim", "memtile", "core"]:
        return "shim" if self.row == 0 else "memtile" if self.row == 1 else "core"

    def beside(self, other: Tile) -> bool:
        """Both reach the memory of one of them."""
        return abs(self.column - other.column) + abs(self.row - other.row) <= 1

    def __str__(self) -> str:
        return f"({self.column},{self.row})"


@dataclass(frozen=True, slots=True)
class Type:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Argument:
    """A host buffer, in the order the runtime sequence takes them."""

    name: str
    type: Type

    @property
    def nbytes(self) -> int:
        return self.type.nbytes

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.type.dtype


@dataclass(frozen=True, slots=True)
class End:
    """Where a fifo begins or ends: a worker, a link, or (neither) the host."""

    tile: Tile
    depth: int
    worker: str | None = None
    link: str | None = None
    dims: Dims = ()  # to the stream for a producer, from it for a consumer; () is linear

    @property
    def host(self) -> bool:
        return self.worker is None and self.link is None


@dataclass(frozen=True, slots=True)
class Fifo:
    name: str
    type: Type
    producer: End
    consumers: tuple[End, ...]
    over_dma: bool = False  # even where both ends reach one memory

    @property
    def shared(self) -> bool:
        """Handed over in a memory that both cores reach: no DMA, no stream."""
        ends = (self.producer, *self.consumers)
        return (
            len(ends) == 2
            and not self.over_dma
            and all(end.worker is not None and not end.dims for end in ends)
            and ends[0].tile.beside(ends[1].tile)
        )


@dataclass(frozen=True, slots=True)
class Part:
    fifo: str
    offset: int  # in the larger object


@dataclass(frozen=True, slots=True)
class Link:
    """Where objects pass through a memory tile: one to many (split, forward), or a join."""

    name: str
    tile: Tile
    sources: tuple[Part, ...]
    destinations: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    symbol: str
    parameters: tuple[Type | np.dtype[Any], ...]
    source: str | None = None
    flags: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """L1 memory of one core; the sequence may write words of it (runtime parameters)."""

    name: str
    type: Type
    tile: Tile
    initial: np.ndarray[Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class Barrier:
    name: str
    initial: int = 0


@dataclass(frozen=True, slots=True)
class Port:
    """A fifo's end, as a worker's body holds it."""

    fifo: str
    produces: bool
    consumer: int = 0  # which of the fifo's consumers


@dataclass(frozen=True, slots=True)
class Sites:
    """What mlir-aie would emit for a body: range_ bodies once, Python loops unrolled."""

    calls: tuple[Kernel, ...] = ()
    locks: int = 0
    loops: int = 0
    barriers: tuple[tuple[str, str], ...] = ()  # (barrier, "wait" or "release")
    held_max: tuple[tuple[Port, int], ...] = ()
    waits: bool = False  # on anything at all


@dataclass(frozen=True, slots=True, eq=False)
class Worker:
    name: str
    tile: Tile
    body: Callable[..., object] | None
    arguments: tuple[
        Any, ...
    ]  # Port, Buffer, Kernel, Barrier, tuples of them, and plain Python values
    stack_bytes: int | None = None
    forever: bool = True
    sites: Sites = Sites()


@dataclass(frozen=True, slots=True)
class Transfer:
    """One fill or drain: a part of an argument, in an order, into or out of a fifo."""

    number: int
    fifo: str
    fills: bool
    argument: int
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    awaited: bool


@dataclass(frozen=True, slots=True)
class Push:
    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Await:
    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Free:
    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Write:
    """A word of a buffer; `value` is its bits as an int32."""

    buffer: str
    index: int
    value: int


@dataclass(frozen=True, slots=True)
class SetBarrier:
    barrier: str
    value: int


def flat(values: Iterable[Any]) -> Iterator[Any]:
    """The leaves of nested lists and tuples, as fn_args may nest them."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from flat(value)
        else:
            yield value


Step = Push | Await | Free | Write | SetBarrier


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    columns: int
    rows: int = 6


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    device: Device
    arguments: tuple[Argument, ...]
    fifos: tuple[Fifo, ...]
    links: tuple[Link, ...]
    workers: tuple[Worker, ...]
    buffers: tuple[Buffer, ...]
    barriers: tuple[Barrier, ...]
    sequence: tuple[Step, ...]

    def fifo(self, name: str) -> Fifo:
        return next(fifo for fifo in self.fifos if fifo.name == name)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel that a worker is given, in order."""
        arguments = (a for worker in self.workers for a in flat(worker.arguments))
        return tuple(dict.fromkeys(a for a in arguments if isinstance(a, Kernel)))

    def __str__(self) -> str:
        lines = [f"{self.device.name}, {self.device.columns} columns"]
        lines += [f"  argument {a.name}: {a.type}" for a in self.arguments]
        lines += [f"  worker {w.name}" for w in self.workers]
        for fifo in self.fifos:
            ends = ", ".join(f"{end.tile} x{end.depth}" for end in fifo.consumers)
            lines.append(f"  fifo {fifo.name}: {fifo.type} {fifo.producer.tile} -> {ends}")
        return "\n".join([*lines, f"  sequence of {len(self.sequence)} steps"])

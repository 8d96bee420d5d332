"""aie.iron: ObjectFifo, its handles, and what joins and splits them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from npu_kernels.iron_sim import record
from npu_kernels.iron_sim.aie.device import pinned
from npu_kernels.iron_sim.aie.types import refuse, type_of
from npu_kernels.iron_sim.faults import not_simulated

HOST = "host"  # the endpoint of a handle that the runtime sequence fills or drains


def dims_of(dims: Any) -> record.Dims:
    return tuple((int(size), int(stride)) for size, stride in dims or ())


class ObjectFifo:
    _unnamed = count()

    def __init__(
        self,
        obj_type: Any,
        depth: Any = 2,
        name: str | None = None,
        dims_to_stream: Any = None,
        dims_from_stream_per_cons: Any = None,
        plio: bool = False,
        *,
        via_DMA: bool = False,
        **unknown: Any,
    ) -> None:
        refuse("ObjectFifo", plio=plio, **unknown)
        self.obj_type = obj_type
        self.type = type_of(obj_type)
        self.depth = depth
        if any(d is not None and d < 1 for d in self.depths):
            raise ValueError(f"a fifo's depth must be at least 1, not {depth}")
        self.name = name if name is not None else f"of{next(ObjectFifo._unnamed)}"
        self.dims_to_stream = dims_of(dims_to_stream)
        self.dims_from_stream = dims_of(dims_from_stream_per_cons)
        self.over_dma = via_DMA
        self.producer: ObjectFifoHandle | None = None
        self.consumers: list[ObjectFifoHandle] = []

    @property
    def depths(self) -> list[int | None]:
        return list(self.depth) if isinstance(self.depth, list | tuple) else [self.depth]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> Any:
        return self.type.dtype

    def prod(
        self, depth: int | None = None, *, tile: Any = None, channel: int | None = None
    ) -> ObjectFifoHandle:
        """The one handle that gives objects."""
        refuse("ObjectFifo.prod", channel=channel)
        if self.producer is None:
            self.producer = ObjectFifoHandle(self, True, depth or self.depths[0], (), tile)
        elif depth not in (None, self.producer.depth):
            raise ValueError(f"{self.name}: prod() has depth {self.producer.depth} already")
        elif pinned(tile):
            self.producer.tile = tile
        return self.producer

    def cons(
        self,
        depth: int | None = None,
        dims_from_stream: Any = None,
        *,
        tile: Any = None,
        channel: int | None = None,
    ) -> ObjectFifoHandle:
        """A new handle that takes objects: each gets all of them."""
        refuse("ObjectFifo.cons", channel=channel)
        dims = dims_of(dims_from_stream) or self.dims_from_stream
        handle = ObjectFifoHandle(self, False, depth or self.depths[-1], dims, tile)
        self.consumers.append(handle)
        return handle

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise not_simulated(f"ObjectFifo.{name}")


class ObjectFifoHandle:
    def __init__(
        self,
        fifo: ObjectFifo,
        produces: bool,
        depth: int | None,
        dims: record.Dims,
        tile: Any = None,
    ) -> None:
        if depth is None:
            raise ValueError(f"{fifo.name}: no depth for this handle, nor for the fifo")
        if depth < 1:
            raise ValueError(f"{fifo.name}: a handle's depth must be at least 1, not {depth}")
        self.fifo, self.produces, self.depth, self.dims, self.tile = (
            fifo,
            produces,
            depth,
            dims,
            tile,
        )
        self.endpoint: Any = None  # a Worker, an ObjectFifoLink, or HOST

    @property
    def name(self) -> str:
        return self.fifo.name

    @property
    def obj_type(self) -> Any:
        return self.fifo.obj_type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.fifo.shape

    @property
    def dtype(self) -> Any:
        return self.fifo.dtype

    def ends_at(self, endpoint: Any) -> None:
        if self.endpoint is not None and self.endpoint is not endpoint:
            kind = "prod" if self.produces else "cons"
            raise ValueError(f"{self.name}.{kind}(): this handle has an endpoint already")
        self.endpoint = endpoint

    def acquire(self, num_elem: int) -> Any:
        raise not_simulated(
            f"'{self.name}': acquire of a handle that is not in its Worker's fn_args"
        )

    def release(self, num_elem: int) -> None:
        raise not_simulated(
            f"'{self.name}': release of a handle that is not in its Worker's fn_args"
        )

    # The runtime sequence's verbs, as of 1.4

    def fill(self, source: Any, tap: Any = None, wait: bool = False, **options: Any) -> Any:
        if not self.produces:
            raise ValueError(f"{self.name}: fill() wants prod()")
        return self._transfer("fill", source, tap, wait, options)

    def drain(self, dest: Any, tap: Any = None, wait: bool = False, **options: Any) -> Any:
        if self.produces:
            raise ValueError(f"{self.name}: drain() wants cons()")
        return self._transfer("drain", dest, tap, wait, options)

    def _transfer(self, verb: str, data: Any, tap: Any, wait: bool, options: dict[str, Any]) -> Any:
        from npu_kernels.iron_sim.aie.runtime import active_sequence
        from npu_kernels.iron_sim.aie.taps import TensorAccessPattern

        group = options.pop("group", None)
        offset, sizes, strides = (options.pop(n, None) for n in ("offset", "sizes", "strides"))
        if not options.pop("managed", True):
            raise not_simulated(f"{verb}(managed=False)")
        refuse(verb, **options)
        if sizes is not None or offset is not None:
            tap = TensorAccessPattern(data.shape, offset or 0, sizes, strides)
        return active_sequence(verb).transfer(self, data, tap, group, wait)

    # What passes through a memory tile

    def join(
        self,
        offsets: Sequence[int],
        placement: Any = None,
        depths: Any = None,
        obj_types: Any = None,
        names: Any = None,
        dims_to_stream: Any = None,
        dims_from_stream: Any = None,
        plio: bool = False,
        *,
        tile: Any = None,
        **unknown: Any,
    ) -> list[ObjectFifo]:
        """New fifos whose objects become parts of this one's."""
        refuse("join", plio=plio, **unknown)
        if not self.produces:
            raise ValueError(f"{self.name}: join() wants prod()")
        each = _Each(self, offsets, "_join", depths, obj_types, names)
        outward, inward = each.list_of(dims_to_stream), each.list_of(dims_from_stream)
        fifos = [each.fifo(n, outward[n], None) for n in range(len(offsets))]
        handles = [fifo.cons(each.depths[n], inward[n] or None) for n, fifo in enumerate(fifos)]
        ObjectFifoLink(handles, [self], (tile, placement), handles, offsets)
        return fifos

    def split(
        self,
        offsets: Sequence[int],
        placement: Any = None,
        depths: Any = None,
        obj_types: Any = None,
        names: Any = None,
        dims_to_stream: Any = None,
        dims_from_stream: Any = None,
        plio: bool = False,
        *,
        tile: Any = None,
        **unknown: Any,
    ) -> list[ObjectFifo]:
        """New fifos whose objects are parts of this one's."""
        refuse("split", plio=plio, **unknown)
        if self.produces:
            raise ValueError(f"{self.name}: split() wants cons()")
        each = _Each(self, offsets, "_split", depths, obj_types, names)
        outward, inward = each.list_of(dims_to_stream), each.list_of(dims_from_stream)
        fifos = [each.fifo(n, outward[n], inward[n]) for n in range(len(offsets))]
        handles = [fifo.prod() for fifo in fifos]
        ObjectFifoLink([self], handles, (tile, placement), handles, offsets)
        return fifos

    def forward(
        self,
        placement: Any = None,
        obj_type: Any = None,
        depth: int | None = None,
        name: str | None = None,
        dims_to_stream: Any = None,
        dims_from_stream: Any = None,
        plio: bool = False,
        *,
        tile: Any = None,
        **unknown: Any,
    ) -> ObjectFifo:
        """A new fifo with this one's objects."""
        refuse("forward", **unknown)
        return self.split(
            [0],
            placement,
            [depth] if depth else None,
            [obj_type] if obj_type else None,
            [name or f"{self.name}_fwd"],
            [dims_to_stream] if dims_to_stream else None,
            [dims_from_stream] if dims_from_stream else None,
            plio,
            tile=tile,
        )[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise not_simulated(f"ObjectFifoHandle.{name}")


class _Each:
    """The lists that join and split take, one entry for each part."""

    def __init__(
        self,
        whole: ObjectFifoHandle,
        offsets: Sequence[int],
        suffix: str,
        depths: Any,
        obj_types: Any,
        names: Any,
    ) -> None:
        self._count = len(offsets)
        self.depths = self.list_of(depths) if depths else [whole.depth] * self._count
        self._types = self.list_of(obj_types) if obj_types else [whole.obj_type] * self._count
        made = [f"{whole.name}{suffix}{n}" for n in range(self._count)]
        self._names = self.list_of(names) if names else made

    def list_of(self, values: Any) -> list[Any]:
        if values is None or len(values) == 0:
            return [None] * self._count
        if len(values) != self._count:
            raise ValueError(f"{len(values)} values for {self._count} offsets")
        return list(values)

    def fifo(self, number: int, outward: Any, inward: Any) -> ObjectFifo:
        return ObjectFifo(
            self._types[number],
            self.depths[number],
            self._names[number],
            outward or None,
            inward or None,
        )


class ObjectFifoLink:
    def __init__(
        self,
        sources: list[ObjectFifoHandle],
        destinations: list[ObjectFifoHandle],
        places: Sequence[Any],
        parts: list[ObjectFifoHandle],
        offsets: Sequence[int],
    ) -> None:
        self.sources, self.destinations = sources, destinations
        self.pinned = pinned(*places)
        self.offsets = {id(h): int(offset) for h, offset in zip(parts, offsets, strict=True)}
        whole = (destinations if len(sources) > 1 else sources)[0]
        self.name = f"link of '{whole.name}'"
        for handle in (*sources, *destinations):
            handle.ends_at(self)

    def parts_of(self, handles: list[ObjectFifoHandle]) -> tuple[record.Part, ...]:
        return tuple(record.Part(h.name, self.offsets.get(id(h), 0)) for h in handles)

"""What one buffer descriptor can say: dimensions, wraps, steps, length, repeats."""

from __future__ import annotations

from collections.abc import Iterator

from npu_kernels.iron_sim.channels import channels
from npu_kernels.iron_sim.finding import Finding
from npu_kernels.iron_sim.limits import DMAS, ITERATION_WRAP_MAX, REPEAT_MAX, Dma
from npu_kernels.iron_sim.lower import part_walk
from npu_kernels.iron_sim.record import Push, Record
from npu_kernels.iron_sim.simulate import transfer_walk
from npu_kernels.iron_sim.walk import Walk

Dims = list[tuple[int, int]]


def descriptors(record: Record) -> Iterator[Finding]:
    for channel in channels(record):
        if channel.tile.kind != "shim":
            fifo = record.fifo(channel.fifo)
            where = f"{fifo.name} in {channel.tile.kind} {channel.tile}"
            walk = part_walk(fifo, 0, channel.end.dims, where)
            yield from said(walk, DMAS[channel.tile.kind], where)
    for step in record.sequence:
        if isinstance(step, Push):
            transfer = step.transfer
            walk = transfer_walk(transfer, record.arguments[transfer.argument])
            kind = "fill" if transfer.fills else "drain"
            yield from transfer_fits(walk, f"{kind} {transfer.number} of '{transfer.fifo}'")


def dims_of(walk: Walk) -> Dims:
    """(size, stride), leading dimensions of size 1 dropped: they take no field."""
    dims = list(zip(walk.sizes, walk.strides, strict=True))
    while len(dims) > 1 and dims[0][0] == 1:
        dims.pop(0)
    return dims


def transfer_fits(walk: Walk, where: str) -> Iterator[Finding]:
    """The shim's fourth dimension repeats: the same place again, or one that moves on."""
    dims = dims_of(walk)
    most = DMAS["shim"].dims + 1
    if len(dims) > most:
        yield Finding("dims", where, f"{len(dims)} dimensions, {most} at most: {dims}")
        return
    if len(dims) == most:
        size, stride = dims.pop(0)
        repeats_max = ITERATION_WRAP_MAX if stride else REPEAT_MAX
        if size > repeats_max:
            what = f"{size} repeats, {repeats_max} at most" + (" with a stride" if stride else "")
            yield Finding("repeat", where, what)
        if stride > DMAS["shim"].step_max:
            yield Finding("stride", where, f"{stride} words in the outermost dimension")
        walk = Walk(walk.offset, tuple(n for n, _ in dims), tuple(s for _, s in dims))
    yield from said(walk, DMAS["shim"], where)


def said(walk: Walk, dma: Dma, where: str) -> Iterator[Finding]:
    if walk.count > dma.length_max:
        yield Finding("length", where, f"{walk.count} words, {dma.length_max} at most")
    if walk.linear:
        return
    dims = dims_of(walk)
    if len(dims) > dma.dims:
        yield Finding("dims", where, f"{len(dims)} dimensions, {dma.dims} at most: {dims}")
        return
    for (size, stride), wrap in zip(reversed(dims), dma.wraps, strict=False):
        if wrap is not None and size > wrap:
            yield Finding("wrap", where, f"{size} words or runs, {wrap} at most in {dims}")
        if size > 1 and not 1 <= stride <= dma.step_max:
            yield Finding("stride", where, f"{stride} words, 1 to {dma.step_max} in {dims}")

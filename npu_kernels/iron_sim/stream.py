"""A record's sequence as an instruction stream, with channels and descriptors of our choice.

aiecc's streams say the same with other numbers: whoever runs ours reads `layout` as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from npu_kernels import txn
from npu_kernels.iron_sim.descriptors import dims_of
from npu_kernels.iron_sim.faults import DesignFault
from npu_kernels.iron_sim.layout import layout
from npu_kernels.iron_sim.limits import DMAS
from npu_kernels.iron_sim.record import Await, Push, Record, SetBarrier, Step, Tile, Transfer, Write
from npu_kernels.iron_sim.simulate import transfer_walk
from npu_kernels.iron_sim.walk import WORD_BYTES, Walk
from npu_kernels.txn.check import APERTURE, ARGUMENTS_MAX
from npu_kernels.txn.descriptors import Descriptor, Dim
from npu_kernels.txn.geometry import Place
from npu_kernels.txn.shim import CONTROL, DESCRIPTOR_BASE, DESCRIPTOR_BYTES, QUEUE, TOKEN_BIT

TOKEN_FIELD, TOKEN_SOURCE = 0x1F00, 15  # which controller a task's token is for
GEOMETRIES = {geometry.name: geometry for geometry in (txn.NPU1, txn.NPU2)}
CONTROL_AT = {channel: offset for offset, channel in CONTROL.items()}
QUEUE_AT = {channel: offset for offset, channel in QUEUE.items()}


def stream(record: Record) -> txn.Words:
    header = txn.Header.for_device(GEOMETRIES[record.device.name])
    return txn.encode(operations(record), header)


def operations(record: Record) -> tuple[txn.Operation, ...]:
    writer = _Writer(record)
    return tuple(operation for step in record.sequence for operation in writer.step(step))


class _Writer:
    def __init__(self, record: Record) -> None:
        self._record = record
        self._layout = layout(record)
        self._free: dict[int, list[int]] = defaultdict(
            lambda: list(range(DMAS["shim"].descriptors))
        )
        self._taken: dict[int, int] = {}  # a transfer's descriptor

    def step(self, step: Step) -> Iterator[txn.Operation]:
        if isinstance(step, Push):
            yield from self._push(step.transfer)
        elif isinstance(step, Write):
            tile, start = self._layout.buffers[step.buffer]
            yield _write(tile, start + WORD_BYTES * step.index, step.value)
        elif isinstance(step, SetBarrier):
            for lock, (tile, offset) in self._layout.locks.items():
                if lock.barrier == step.barrier:
                    yield _write(tile, offset, step.value)
        else:
            host = self._layout.hosts[step.transfer.fifo]
            if isinstance(step, Await):
                yield txn.Await(host.column, 0, host.fills, host.channel)
            self._give_back(host.column, step.transfer)

    def _push(self, transfer: Transfer) -> Iterator[txn.Operation]:
        host = self._layout.hosts[transfer.fifo]
        number = self._take(host.column, transfer)
        walk = transfer_walk(transfer, self._record.arguments[transfer.argument])
        descriptor, repeats = described(walk)
        base = Place(host.column, 0, DESCRIPTOR_BASE + DESCRIPTOR_BYTES * number).address
        yield txn.BlockWrite(base, descriptor.words())
        # The firmware adds the aperture of DDR to the first arguments only.
        aperture = 0 if transfer.argument < ARGUMENTS_MAX else APERTURE
        offset = walk.offset * WORD_BYTES + aperture
        yield txn.Patch(base + WORD_BYTES, transfer.argument, offset)
        channel = (host.fills, host.channel)
        if transfer.awaited:
            control = Place(host.column, 0, CONTROL_AT[channel]).address
            yield txn.MaskWrite(control, TOKEN_SOURCE << 8, TOKEN_FIELD)
        task = (TOKEN_BIT if transfer.awaited else 0) | repeats - 1 << 16 | number
        yield txn.Write(Place(host.column, 0, QUEUE_AT[channel]).address, task)

    def _take(self, column: int, transfer: Transfer) -> int:
        if not self._free[column]:
            what = "every buffer descriptor is in use"
            raise DesignFault("shim-descriptors", f"shim ({column},0)", what)
        number = self._taken[transfer.number] = self._free[column].pop(0)
        return number

    def _give_back(self, column: int, transfer: Transfer) -> None:
        if transfer.number in self._taken:
            self._free[column] = sorted([*self._free[column], self._taken.pop(transfer.number)])


def described(walk: Walk) -> tuple[Descriptor, int]:
    """What says the walk, its offset aside, and how often it is run."""
    dims = dims_of(walk)
    repeats, iteration = 1, Dim(1)
    if len(dims) > DMAS["shim"].dims:
        repeats, stride = dims.pop(0)
        iteration = Dim(repeats, stride) if stride else Dim(1)
    inner = Walk(0, tuple(n for n, _ in dims), tuple(s for _, s in dims))
    if inner.linear:
        return Descriptor(inner.count, iteration=iteration), repeats
    steps = [(size, stride if size > 1 else 1) for size, stride in dims]
    (_, d2), (n1, d1), (n0, d0) = [(1, 1)] * (3 - len(dims)) + steps
    lone = len(dims) == 1  # its size is the length
    return (
        Descriptor(
            inner.count,
            d0=Dim(0 if lone else n0, d0),
            d1=Dim(n1 if len(dims) == 3 else 0, d1),
            d2_step=d2,
            iteration=iteration,
        ),
        repeats,
    )


def _write(tile: Tile, offset: int, value: int) -> txn.Write:
    return txn.Write(Place(tile.column, tile.row, offset).address, value & 0xFFFFFFFF)

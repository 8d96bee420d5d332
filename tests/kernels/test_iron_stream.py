"""A record's stream does what its sequence does, and breaks none of the stream's rules."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from npu_kernels import txn
from npu_kernels.iron_sim import simulate
from npu_kernels.iron_sim.descriptors import transfer_fits
from npu_kernels.iron_sim.record import Record
from npu_kernels.iron_sim.shims import ShimArray
from npu_kernels.iron_sim.stream import described, stream
from npu_kernels.iron_sim.walk import walk_of
from npu_kernels.txn.shim import Awaited, Channel, Poked, Shims, Started, Task
from tests.kernels import broken
from tests.kernels.designs import KERNELS, copying, design, program, tensor
from tests.kernels.test_iron_sequence import parameters
from tests.kernels.test_iron_taps import patterns


def words_of(task: Task) -> list[np.ndarray[Any, Any]]:
    (transfer,) = task.transfers
    base = transfer.patch.offset // 4
    descriptor = transfer.descriptor
    return [
        base + descriptor.iteration_offset(n) + descriptor.offsets(0, descriptor.length)
        for n in range(task.repeats)
    ]


def execute(words: txn.Words, array: ShimArray, buffers: Sequence[np.ndarray[Any, Any]]) -> None:
    """The least that runs a stream: tasks one after another, moved whenever a token is awaited."""
    memories = [buffer.reshape(-1).view(np.uint32) for buffer in buffers]
    shims = Shims(txn.NPU2)
    queues: dict[Channel, deque[tuple[Task, deque[int]]]] = {}

    def advance(channel: Channel) -> bool:
        queue = queues.get(channel)
        if not queue:
            return False
        task, places = queue[0]
        memory = memories[task.transfers[0].patch.argument]
        where = list(places)
        if channel.fills:
            moved = array.write(channel.column, channel.number, memory[where])
        else:
            part = array.read(channel.column, channel.number, len(where))
            moved = len(part)
            memory[where[:moved]] = part
        for _ in range(moved):
            places.popleft()
        if not places:
            queue.popleft()
        return moved > 0

    for operation in txn.parse(words):
        for event in shims.apply(operation, "here"):
            if isinstance(event, Started):
                places = deque(int(n) for n in np.concatenate(words_of(event.task)))
                queues.setdefault(event.task.channel, deque()).append((event.task, places))
            elif isinstance(event, Poked):
                place = event.place
                array.poke(place.column, place.row, place.offset, event.value)
            elif isinstance(event, Awaited):
                while sum(advance(channel) for channel in queues):
                    pass
    assert not any(queues.values())
    array.balanced()


def transposing() -> Record:
    """A pattern of four dimensions, the outermost a repeat, and one that moves on."""

    def built(iron: Any) -> Any:
        from aie.helpers.taplib import TensorAccessPattern

        come = iron.ObjectFifo(tensor(64), name="in")
        out = come.cons().forward(name="out")

        def sequence(a: Any, b: Any, come: Any, out: Any) -> None:
            come.fill(a, tap=TensorAccessPattern((1024,), 0, [3, 4, 8, 16], [0, 16, 64, 1]))
            back = TensorAccessPattern((1536,), 0, [2, 4, 8, 24], [768, 24, 96, 1])
            out.drain(b, tap=back, wait=True)

        hosts = [tensor(1024), tensor(1536), come.prod(), out.cons()]
        return program(iron, sequence, hosts)

    return design(built)


DESIGNS: dict[str, Callable[[], Record]] = {
    "copying": copying,
    "transposing": transposing,
    "parameters": lambda: design(parameters),
    "rereading": lambda: broken.rereading(awaited=True),
}


@pytest.mark.parametrize("name", DESIGNS)
def test_a_stream_does_what_its_sequence_does(name: str) -> None:
    record = DESIGNS[name]()
    words = stream(record)
    sizes = [argument.nbytes for argument in record.arguments]
    txn.check_words(words, txn.NPU2, sizes, allow={"short-transfer"})
    random = np.random.default_rng(5)
    given = [random.integers(0, 99, a.type.size).astype(a.dtype) for a in record.arguments]
    expected = [buffer.copy() for buffer in given]
    simulate(record, expected, KERNELS)
    array = ShimArray(record, KERNELS)
    try:
        for _ in range(2):
            got = [buffer.copy() for buffer in given]
            execute(words, array, got)
            for ours, theirs in zip(got, expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)
    finally:
        array.close()


def test_the_words_of_a_copy() -> None:
    """Written down from the format: two transfers of a kilobyte, the second awaited."""
    operations = txn.parse(stream(copying()))
    block, patch, push, block_out, patch_out, control, push_out, wait = operations
    assert (block.register, block.data[0], block.data[7]) == (0x1D000, 256, 1 << 25)
    assert (patch.register, patch.argument, patch.offset) == (0x1D004, 0, 0)
    assert (push.register, push.value) == (0x1D214, 0)
    assert (block_out.register, patch_out.argument) == (0x1D020, 1)
    assert (control.register, control.value, control.mask) == (0x1D200, 0xF00, 0x1F00)
    assert (push_out.register, push_out.value) == (0x1D204, 1 << 31 | 1)
    assert wait == txn.Await(column=0, row=0, fills=False, channel=0)


@settings(deadline=None, max_examples=60)
@given(patterns())
def test_what_passes_the_check_is_said_by_a_descriptor(pattern: tuple[Any, np.dtype[Any]]) -> None:
    tap, dtype = pattern
    walk = walk_of(tap.offset, tap.sizes, tap.strides, dtype.itemsize, "here")
    if list(transfer_fits(walk, "here")):
        return
    descriptor, repeats = described(walk)
    assert descriptor.length * repeats == walk.count
    assert len(descriptor.words()) == 8
    passes = [
        walk.offset + descriptor.iteration_offset(n) + descriptor.offsets(0, descriptor.length)
        for n in range(repeats)
    ]
    expected = np.arange(walk.last + 1)[walk.at(0, walk.count)]
    np.testing.assert_array_equal(np.concatenate(passes), expected)


def test_a_standstill_is_told_as_the_stream_waits() -> None:
    record = copying()
    array = ShimArray(record, KERNELS)
    try:
        assert array.write(0, 0, np.zeros(64, np.uint32)) == 64
        assert len(array.read(0, 0, 128)) == 64
        assert "worker copies(0,2) waits for 1 of 'in', 0 there" in array.standstill()
        assert "the sequence awaits 'out'" in array.standstill()
    finally:
        array.close()


def test_a_full_array_takes_no_more() -> None:
    """Two objects each way, and those in the core's hands."""
    array = ShimArray(copying(64, 64), KERNELS)
    try:
        assert array.write(0, 0, np.zeros(64 * 64, np.uint32)) == 4 * 64
        assert len(array.read(0, 0, 64)) == 64
        assert array.write(0, 0, np.zeros(64 * 60, np.uint32)) == 64
    finally:
        array.close()

"""The runtime sequence in each of its shapes, and what it writes into cores."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from npu_kernels.iron_sim import Array, DesignFault, record_of, simulate
from npu_kernels.iron_sim.layout import Lock, layout
from npu_kernels.iron_sim.record import Await, Free, Push, Record, Write
from tests.kernels.broken import copies_once
from tests.kernels.designs import KERNELS, copy_kernel, design, program, tensor

VECTOR = np.arange(256, dtype=np.int32)


def with_runtime(make: Callable[[Any, Any, Any], Any]) -> Record:
    """A copying core; make(iron, fifo in, fifo out) gives the Runtime."""

    def built(iron: Any) -> Any:
        come, leave = (iron.ObjectFifo(tensor(64), name=name) for name in ("in", "out"))
        kernel = copy_kernel(iron, tensor(64))
        worker = iron.Worker(copies_once, [come.cons(), leave.prod(), kernel], stack_size=1024)
        runtime = make(iron, come, leave)
        return iron.Program(iron.get_current_device(), runtime, workers=[worker])

    return design(built)


def as_context(iron: Any, come: Any, leave: Any) -> Any:
    runtime = iron.Runtime()
    with runtime.sequence(tensor(256), tensor(256)) as (a, b):
        runtime.fill(come.prod(), a)
        runtime.drain(leave.cons(), b, wait=True)
    return runtime


def as_registered_function(iron: Any, come: Any, leave: Any) -> Any:
    runtime = iron.Runtime()

    def sequence(a: Any, b: Any) -> None:
        come.prod().fill(a)
        leave.cons().drain(b, wait=True)

    runtime.sequence(sequence, [tensor(256), tensor(256)])
    return runtime


def as_function(iron: Any, come: Any, leave: Any) -> Any:
    def sequence(a: Any, b: Any, ends: Any) -> None:
        ends[0].fill(a)
        ends[1].drain(b, wait=True)

    return iron.Runtime(sequence, [tensor(256), tensor(256), [come.prod(), leave.cons()]])


@pytest.mark.parametrize("shape", [as_context, as_registered_function, as_function])
def test_all_shapes_are_one_sequence(shape: Callable[..., Any]) -> None:
    record = with_runtime(shape)
    assert [type(step) for step in record.sequence] == [Push, Push, Await, Free]
    got = np.zeros_like(VECTOR)
    simulate(record, [VECTOR, got], KERNELS)
    np.testing.assert_array_equal(got, VECTOR)


def test_groups_await_first_and_then_free() -> None:
    def grouped(iron: Any, come: Any, leave: Any) -> Any:
        runtime = iron.Runtime()
        with runtime.sequence(tensor(256), tensor(256)) as (a, b):
            group = runtime.task_group()
            runtime.fill(come.prod(), a, task_group=group)
            runtime.drain(leave.cons(), b, task_group=group, wait=True)
            runtime.finish_task_group(group)
        return runtime

    steps = with_runtime(grouped).sequence
    assert [type(step) for step in steps] == [Push, Push, Await, Free]
    assert isinstance(steps[2], Await)
    assert steps[2].transfer.fifo == "out"


@pytest.mark.parametrize(
    ("finishes", "lone", "what"),
    [(False, False, "not finished"), (True, True, "some transfers are in task groups")],
)
def test_groups_are_finished_and_not_mixed(finishes: bool, lone: bool, what: str) -> None:
    def grouped(iron: Any, come: Any, leave: Any) -> Any:
        runtime = iron.Runtime()
        with runtime.sequence(tensor(256), tensor(256)) as (a, b):
            group = runtime.task_group()
            runtime.fill(come.prod(), a, task_group=None if lone else group)
            runtime.drain(leave.cons(), b, task_group=group, wait=True)
            if finishes:
                runtime.finish_task_group(group)
        return runtime

    with pytest.raises(ValueError, match=what):
        with_runtime(grouped)


def test_verbs_are_the_sequences_alone() -> None:
    def early(iron: Any, come: Any, leave: Any) -> Any:
        come.prod().fill(VECTOR)

    with pytest.raises(RuntimeError, match="fill: only within a runtime sequence"):
        with_runtime(early)


def parameters(iron: Any) -> Any:
    """A core that adds a float parameter, once the barrier lets it."""
    come, leave = (iron.ObjectFifo(tensor(64, dtype=np.float32), name=n) for n in ("in", "out"))
    scale = iron.Buffer(tensor(16, dtype=np.float32), name="scale", use_write_rtp=True)
    barrier = iron.WorkerRuntimeBarrier()

    def body(come: Any, leave: Any, ends: Any, copy: Any) -> None:
        scale, barrier = ends
        barrier.wait_for_value(1)
        source, target = come.acquire(1), leave.acquire(1)
        copy(source, target)
        target[0] = source[0] * scale[3]
        come.release(1)
        leave.release(1)

    kernel = copy_kernel(iron, tensor(64, dtype=np.float32))
    arguments = [come.cons(), leave.prod(), (scale, barrier), kernel]
    worker = iron.Worker(body, arguments, stack_size=0x800)

    def sequence(a: Any, b: Any, come: Any, leave: Any, scale: Any, barrier: Any) -> None:
        scale[3] = 0.5
        barrier.set(1)
        come.fill(a)
        leave.drain(b, wait=True)

    host = tensor(64, dtype=np.float32)
    hosts = [host, host, come.prod(), leave.cons(), scale, barrier]
    return program(iron, sequence, hosts, worker)


def test_parameters_are_words() -> None:
    record = design(parameters)
    assert record.sequence[0] == Write("scale", 3, np.float32(0.5).view(np.int32).item())
    got = np.zeros(64, np.float32)
    simulate(record, [np.full(64, 8, np.float32), got], KERNELS)
    assert got[:2].tolist() == [4, 8]


def test_parameters_have_addresses() -> None:
    """What a stream pokes is what the sequence writes."""
    record = design(parameters)
    places = layout(record)
    tile, start = places.buffers["scale"]
    # Behind the stack and two objects each way.
    assert (tile.column, tile.row, start) == (0, 2, 0x800 + 4 * 256)
    ((lock, (_, lock_offset)),) = places.locks.items()
    assert isinstance(places.at(0, 2, lock_offset), Lock)
    assert places.at(0, 2, start + 12) == ("scale", 3)
    with pytest.raises(DesignFault, match=r"no-parameter: tile \(0,2\): 0x00010"):
        places.at(0, 2, 0x10)
    without = Record(
        record.device, record.arguments, record.fifos, record.links, record.workers,
        record.buffers, record.barriers, record.sequence[2:],
    )  # fmt: skip
    with Array(without, KERNELS) as array:
        array.poke(0, 2, start + 12, np.float32(0.25).view(np.uint32).item())
        array.poke(0, 2, lock_offset, 1)
        got = np.zeros(64, np.float32)
        array.dispatch([np.full(64, 8, np.float32), got])
    assert got[:2].tolist() == [2, 8]
    assert lock.worker == record.workers[0].name


def test_a_parameter_is_within_its_buffer() -> None:
    def beyond(iron: Any, come: Any, leave: Any) -> Any:
        scale = iron.Buffer(tensor(4), name="scale")

        def sequence(scale: Any) -> None:
            scale[4] = 1

        return iron.Runtime(sequence, [scale])

    with pytest.raises(ValueError, match=r"scale\[4\] of 4 words"):
        with_runtime(beyond)


def test_a_record_names_its_kernels() -> None:
    record = with_runtime(as_function)
    (kernel,) = record.kernels
    assert (kernel.symbol, kernel.source) == ("copy", "copy.cc")
    assert record_of(record) is record

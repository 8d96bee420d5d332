"""Fifos carry every object once, in order, wherever they lead; what a core holds stays."""

import threading
from typing import Any

import numpy as np
import pytest

from npu_kernels.iron_sim import Array, DesignFault, simulate
from npu_kernels.iron_sim.record import Tile
from tests.kernels.designs import KERNELS, copy, copy_kernel, copying, design, program, tensor

VECTOR = np.arange(256, dtype=np.int32)


def moving(iron: Any) -> Any:
    """A body that copies objects of any size, one after another, for ever."""

    def moves(come: Any, leave: Any, copy: Any) -> None:
        source, target = come.acquire(1), leave.acquire(1)
        copy(source, target)
        come.release(1)
        leave.release(1)

    return moves


def test_split_and_join_cut_and_mend() -> None:
    """Four cores, each with its quarter of every object."""

    def built(iron: Any) -> Any:
        whole, quarter = tensor(64), tensor(16)
        come, leave = iron.ObjectFifo(whole, name="in"), iron.ObjectFifo(whole, name="out")
        parts = come.cons().split([0, 16, 32, 48], obj_types=[quarter] * 4)
        sums = leave.prod().join([48, 32, 16, 0], obj_types=[quarter] * 4)
        kernel = copy_kernel(iron, quarter)
        workers = [
            iron.Worker(moving(iron), [part.cons(), out.prod(), kernel], stack_size=1024)
            for part, out in zip(parts, sums, strict=True)
        ]

        def sequence(a: Any, b: Any) -> None:
            come.prod().fill(a)
            leave.cons().drain(b, wait=True)

        return program(iron, sequence, [tensor(256), tensor(256)], *workers)

    got = np.zeros_like(VECTOR)
    counters = simulate(design(built), [VECTOR, got], KERNELS)
    np.testing.assert_array_equal(
        got.reshape(4, 4, 16), VECTOR.reshape(4, 4, 16)[:, ::-1], "join offsets are reversed"
    )
    assert counters.kernel_calls == {"copy": 16}


def test_a_broadcast_reaches_all() -> None:
    def built(iron: Any) -> Any:
        come = iron.ObjectFifo(tensor(64), name="in")
        outs = [iron.ObjectFifo(tensor(64), name=f"out{n}") for n in range(3)]
        kernel = copy_kernel(iron, tensor(64))
        workers = [
            iron.Worker(moving(iron), [come.cons(), out.prod(), kernel], stack_size=1024)
            for out in outs
        ]

        def sequence(a: Any, b: Any, come: Any, *leave: Any) -> None:
            group = iron.TaskGroup()
            come.fill(a, group=group)
            for n, handle in enumerate(leave):
                sizes = {"offset": 256 * n, "sizes": [256], "strides": [1]}
                handle.drain(b, wait=True, group=group, **sizes)
            group.finish()

        hosts = [tensor(256), tensor(768), come.prod(), *(out.cons() for out in outs)]
        return program(iron, sequence, hosts, *workers)

    got = np.zeros(768, np.int32)
    counters = simulate(design(built), [VECTOR, got], KERNELS)
    np.testing.assert_array_equal(got.reshape(3, 256), np.stack([VECTOR] * 3))
    assert counters.bytes_read == 1024, "a broadcast is read once"


def test_dims_turn_objects_on_their_way() -> None:
    """Transposed out of the memory tile, and turned back into the core's memory."""

    def built(iron: Any) -> Any:
        square = tensor(8, 8)
        come, leave = iron.ObjectFifo(square, name="in"), iron.ObjectFifo(square, name="out")
        turned = come.cons().forward(name="mem", dims_to_stream=[(8, 1), (8, 8)])
        kernel = copy_kernel(iron, square)
        twice = iron.ObjectFifo(square, name="twice", via_DMA=True)
        back = twice.cons(dims_from_stream=[(8, 1), (8, 8)])
        workers = [
            iron.Worker(moving(iron), [turned.cons(), twice.prod(), kernel], stack_size=1024),
            iron.Worker(moving(iron), [back, leave.prod(), kernel], stack_size=1024),
        ]

        def sequence(a: Any, b: Any) -> None:
            come.prod().fill(a)
            leave.cons().drain(b, wait=True)

        return program(iron, sequence, [tensor(256), tensor(256)], *workers)

    got, seen = np.zeros_like(VECTOR), []

    def look(source: Any, target: Any) -> None:
        seen.append(source.copy())
        copy(source, target)

    simulate(design(built), [VECTOR, got], {"copy": look})
    np.testing.assert_array_equal(got, VECTOR)
    np.testing.assert_array_equal(seen[0], VECTOR[:64].reshape(8, 8).T)


def test_neighbours_share_a_memory() -> None:
    """No DMA: the fifo's objects are the only ones there are."""

    def built(iron: Any, **options: Any) -> Any:
        come, leave = (iron.ObjectFifo(tensor(64), name=name) for name in ("in", "out"))
        between = iron.ObjectFifo(tensor(64), name="between", **options)
        kernel = copy_kernel(iron, tensor(64))
        workers = [
            iron.Worker(moving(iron), [come.cons(), between.prod(), kernel], stack_size=1024),
            iron.Worker(moving(iron), [between.cons(), leave.prod(), kernel], stack_size=1024),
        ]

        def sequence(a: Any, b: Any) -> None:
            come.prod().fill(a)
            leave.cons().drain(b, wait=True)

        return program(iron, sequence, [tensor(256), tensor(256)], *workers)

    assert design(built).fifo("between").shared
    assert not design(lambda iron: built(iron, via_DMA=True)).fifo("between").shared
    got = np.zeros_like(VECTOR)
    simulate(design(built), [VECTOR, got], KERNELS)
    np.testing.assert_array_equal(got, VECTOR)


def test_objects_are_held_and_released_oldest_first() -> None:
    """A sliding window of three: acquire counts what is held already."""

    def window(come: Any, leave: Any, copy: Any) -> None:
        for n in range(4):
            held = come.acquire(min(3, 4 - n))
            copy(held[0] if n < 3 else held, target := leave.acquire(1))
            target[63] = held[2][0] if n < 2 else target[63]
            leave.release(1)
            come.release(1)

    got = np.zeros_like(VECTOR)
    simulate(copying(64, 4, depth=4, body=window), [VECTOR, got], KERNELS)
    expected = VECTOR.reshape(4, 64).copy()
    expected[:2, 63] = [128, 192]
    np.testing.assert_array_equal(got.reshape(4, 64), expected)


def test_what_was_released_is_not_used() -> None:
    def keeps(come: Any, leave: Any, copy: Any) -> None:
        first = come.acquire(1)
        come.release(1)
        copy(come.acquire(1), leave.acquire(1))
        copy(first, leave.acquire(1))
        come.release(1)
        leave.release(1)

    with pytest.raises(DesignFault, match=r"use-after-release: in.*oldest") as fault:
        simulate(copying(64, 4, body=keeps), [VECTOR, VECTOR.copy()], KERNELS)
    assert "in the body of worker keeps(0,2)" in fault.value.__notes__


def test_parameters_hold_a_core_back_until_they_are_written() -> None:
    """The barrier takes its value off: each dispatch waits for its own parameters."""

    def built(iron: Any) -> Any:
        from aie.iron.controlflow import range_

        come, leave = (iron.ObjectFifo(tensor(64), name=name) for name in ("in", "out"))
        parameters = iron.Buffer(tensor(16), name="rtp", use_write_rtp=True)
        barrier = iron.WorkerRuntimeBarrier()

        def adds(come: Any, leave: Any, parameters: Any, barrier: Any, copy: Any) -> None:
            barrier.wait_for_value(1)
            for _ in range_(parameters[0]):
                source, target = come.acquire(1), leave.acquire(1)
                copy(source, target)
                target[0] = source[0] + parameters[1]
                come.release(1)
                leave.release(1)

        fn_args = [come.cons(), leave.prod(), parameters, barrier, copy_kernel(iron, tensor(64))]
        worker = iron.Worker(adds, fn_args, stack_size=1024)

        def sequence(a: Any, b: Any, come: Any, leave: Any, parameters: Any, barrier: Any) -> None:
            parameters[0] = 4
            parameters[1] = 1000
            barrier.set(1)
            come.fill(a)
            leave.drain(b, wait=True)

        hosts = [tensor(256), tensor(256), come.prod(), leave.cons(), parameters, barrier]
        return program(iron, sequence, hosts, worker)

    expected = VECTOR.reshape(4, 64).copy()
    expected[:, 0] += 1000
    with Array(design(built), KERNELS) as array:
        for _ in range(3):
            got = np.zeros_like(VECTOR)
            array.dispatch([VECTOR, got])
            np.testing.assert_array_equal(got.reshape(4, 64), expected)


def test_a_buffer_stays_from_dispatch_to_dispatch() -> None:
    def sums(come: Any, leave: Any, copy: Any, total: Any) -> None:
        source, target = come.acquire(1), leave.acquire(1)
        copy(source, target)
        total[0] = total[0] + source[1]
        target[0] = total[0]
        come.release(1)
        leave.release(1)

    def total(iron: Any) -> list[Any]:
        return [iron.Buffer(initial_value=np.zeros(16, np.int32), name="total")]

    record = copying(64, 1, body=sums, more=total)
    with Array(record, KERNELS) as array:
        for dispatch in range(1, 4):
            got = np.zeros(64, np.int32)
            array.dispatch([VECTOR[:64], got])
            assert got[0] == dispatch


def test_l1_holds_what_was_there_before() -> None:
    seen = []

    def looks(source: Any, target: Any) -> None:
        seen.append(target.copy())
        assert source.ctypes.data % 64 == target.ctypes.data % 64 == 0
        target[...] = source

    simulate(copying(64, 1, dtype=np.float32), [np.ones(64, np.float32)] * 2, {"copy": looks})
    assert np.isnan(seen[0]).all()


def test_pinned_tiles_are_kept() -> None:
    def built(iron: Any) -> Any:
        from aie.iron.device import Tile as Place

        come, leave = (iron.ObjectFifo(tensor(64), name=name) for name in ("in", "out"))
        kernel = copy_kernel(iron, tensor(64))
        worker = iron.Worker(
            moving(iron), [come.cons(), leave.prod(), kernel], tile=Place(3, 4), stack_size=1024
        )

        def sequence(a: Any, b: Any, come: Any, leave: Any) -> None:
            come.fill(a)
            leave.drain(b, wait=True)

        hosts = [come.prod(tile=Place(5, 0)), leave.cons(tile=Place(6, 0))]
        return program(iron, sequence, [tensor(256), tensor(256), *hosts], worker)

    record = design(built)
    assert record.workers[0].tile == Tile(3, 4)
    assert record.fifo("in").producer.tile == Tile(5, 0)
    assert record.fifo("out").consumers[0].tile == Tile(6, 0)


def test_no_thread_outlives_its_array() -> None:
    before = threading.active_count()
    array = Array(copying(), KERNELS)
    assert threading.active_count() > before
    array.close()
    assert threading.active_count() == before


def test_a_kernel_that_fails_says_where() -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("in the kernel")

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError, match="in the kernel") as error:
        simulate(copying(), [VECTOR, VECTOR.copy()], {"copy": fails})
    assert error.value.__notes__ == ["in the body of worker copies(0,2)"]
    assert threading.active_count() == before

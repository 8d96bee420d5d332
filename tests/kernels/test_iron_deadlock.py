"""Nothing hangs: a design that cannot go on is told who waits for whom, and threads end."""

import threading
from typing import Any

import numpy as np
import pytest

from npu_kernels.iron_sim import Deadlock, DesignFault, simulate
from tests.kernels.designs import KERNELS, copy_kernel, copying, design, program, tensor

VECTOR = np.arange(256, dtype=np.int32)


def run(record: Any) -> None:
    before = threading.active_count()
    try:
        simulate(record, [VECTOR, VECTOR.copy()], KERNELS)
    finally:
        assert threading.active_count() == before


def test_a_cycle_is_named() -> None:
    """The sequence wants the output before it gives the input."""

    def sequence(a: Any, b: Any, come: Any, leave: Any) -> None:
        from aie.iron import TaskGroup

        group = TaskGroup()
        leave.drain(b, wait=True, group=group)
        group.finish()
        come.fill(a)

    with pytest.raises(Deadlock) as deadlock:
        run(copying(sequence=sequence))
    assert deadlock.value.closed
    assert deadlock.value.cycle == (
        "the sequence awaits 'out'",
        "fifo 'out' has nothing to send",
        "worker copies(0,2) waits for 1 of 'in', 0 there",
        "fifo 'in' has no fill",
        "the sequence awaits 'out'",
    )


def test_two_cores_that_wait_for_each_other() -> None:
    def built(iron: Any) -> Any:
        there, back = (iron.ObjectFifo(tensor(64), name=name) for name in ("there", "back"))
        out = iron.ObjectFifo(tensor(64), name="out")
        kernel = copy_kernel(iron, tensor(64))

        def asks(come: Any, leave: Any, out: Any, copy: Any) -> None:
            copy(come.acquire(1), leave.acquire(1))
            come.release(1)
            leave.release(1)
            out.acquire(1)
            out.release(1)

        def answers(come: Any, leave: Any, copy: Any) -> None:
            copy(come.acquire(1), leave.acquire(1))
            come.release(1)
            leave.release(1)

        workers = [
            iron.Worker(asks, [back.cons(), there.prod(), out.prod(), kernel], stack_size=1024),
            iron.Worker(answers, [there.cons(), back.prod(), kernel], stack_size=1024),
        ]
        hosts = [tensor(256), tensor(256), out.cons()]
        return program(iron, lambda a, b, out: out.drain(b, wait=True), hosts, *workers)

    with pytest.raises(Deadlock) as deadlock:
        run(design(built))
    assert deadlock.value.cycle == (
        "worker asks(0,2) waits for 1 of 'back', 0 there",
        "worker answers(0,3) waits for 1 of 'there', 0 there",
        "worker asks(0,2) waits for 1 of 'back', 0 there",
    )


def test_a_join_that_starves_its_partner() -> None:
    """One core gives its second object before its first part is taken: depth 1 is not enough."""

    def built(iron: Any) -> Any:
        come = iron.ObjectFifo(tensor(64), name="in", depth=1)
        one, two = (iron.ObjectFifo(tensor(64), name=name, depth=1) for name in ("one", "two"))
        out = iron.ObjectFifo(tensor(64), name="out", depth=1)
        kernel = copy_kernel(iron, tensor(64))

        def deals(come: Any, one: Any, two: Any, copy: Any) -> None:
            for target in (one, one, one, two):
                copy(come.acquire(1), target.acquire(1))
                come.release(1)
                target.release(1)

        def pairs(one: Any, two: Any, out: Any, copy: Any) -> None:
            copy(two.acquire(1), out.acquire(1))
            two.release(1)
            out.release(1)
            for _ in range(3):
                one.acquire(1)
                one.release(1)

        workers = [
            iron.Worker(deals, [come.cons(), one.prod(), two.prod(), kernel], stack_size=1024),
            iron.Worker(pairs, [one.cons(), two.cons(), out.prod(), kernel], stack_size=1024),
        ]

        def sequence(a: Any, b: Any, come: Any, out: Any) -> None:
            come.fill(a)
            out.drain(b, sizes=[64], strides=[1], wait=True)

        hosts = [tensor(256), tensor(256), come.prod(), out.cons()]
        return program(iron, sequence, hosts, *workers)

    with pytest.raises(Deadlock, match=r"waits for room for 1 in 'one'.*waits for 1 of 'two'"):
        run(design(built))


def test_a_core_that_ended_keeps_nobody() -> None:
    def once(come: Any, leave: Any, copy: Any) -> None:
        copy(come.acquire(1), leave.acquire(1))
        come.release(1)
        leave.release(1)

    with pytest.raises(Deadlock) as deadlock:
        run(copying(body=once, while_true=False))
    assert not deadlock.value.closed
    assert deadlock.value.cycle[-1] == "worker once(0,2) has ended"


def test_what_is_produced_is_consumed_in_each_dispatch() -> None:
    def takes_less(come: Any, leave: Any, copy: Any) -> None:
        copy(come.acquire(1), leave.acquire(1))
        leave.release(1)
        come.release(1)
        come.acquire(2)

    def one(a: Any, b: Any, come: Any, leave: Any) -> None:
        come.fill(a, sizes=[128], strides=[1])
        leave.drain(b, sizes=[64], strides=[1], wait=True)

    with pytest.raises(DesignFault, match=r"balance: .*: 'in' 2 produced, 1 consumed"):
        run(copying(body=takes_less, sequence=one))


def test_half_an_object_is_no_object() -> None:
    def half(a: Any, b: Any, come: Any, leave: Any) -> None:
        come.fill(a, sizes=[96], strides=[1])
        leave.drain(b, sizes=[64], strides=[1], wait=True)

    with pytest.raises(DesignFault, match="balance: in: 128 bytes of an object"):
        run(copying(sequence=half))


def test_a_fill_that_nobody_takes_is_told() -> None:
    def too_much(a: Any, b: Any, come: Any, leave: Any) -> None:
        come.fill(a, sizes=[3, 256], strides=[0, 1])
        leave.drain(b, sizes=[64], strides=[1], wait=True)

    with pytest.raises(Deadlock, match=r"fifo 'in' has no room to go to.*the sequence has ended"):
        run(copying(sequence=too_much))


def test_a_fifth_start_is_not_dropped_in_silence() -> None:
    def five(a: Any, b: Any, come: Any, leave: Any) -> None:
        for _ in range(5):
            come.fill(a, offset=0, sizes=[64], strides=[1])
        leave.drain(b, wait=True)

    with pytest.raises(DesignFault, match="queue-depth: in: fill 4 of 'in' is start 5"):
        run(copying(64, 4, sequence=five))


def test_a_body_that_waits_for_nothing_is_let_be() -> None:
    """It polls a parameter: the array stands still until that changes."""

    def polls(come: Any, leave: Any, copy: Any, ready: Any) -> None:
        from npu_kernels.iron_sim.loops import range_

        for _ in range_(ready[0]):
            copy(come.acquire(1), leave.acquire(1))
            come.release(1)
            leave.release(1)

    def ready(iron: Any) -> list[Any]:
        return [iron.Buffer(initial_value=np.zeros(16, np.int32), name="ready")]

    with pytest.raises(Deadlock, match=r"polls.*loops without waiting for anything"):
        run(copying(body=polls, more=ready))

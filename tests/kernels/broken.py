"""Designs that break one rule of the array each, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npu_kernels.iron_sim.record import Record
from tests.kernels.designs import copying, design, program, tensor


def takes(come: Any) -> None:
    come.acquire(1)
    come.release(1)


def copies_once(come: Any, leave: Any, copy: Any) -> None:
    copy(come.acquire(1), leave.acquire(1))
    come.release(1)
    leave.release(1)


def filling(*parts: dict[str, Any]) -> Record:
    """A sequence with these fills of 64 KB, a drain of all that is awaited."""

    def sequence(a: Any, b: Any, come: Any, leave: Any) -> None:
        for part in parts:
            come.fill(a, **part)
        leave.drain(b, wait=True)

    return copying(256, 64, sequence=sequence)


def fan_in(count: int) -> Record:
    """One core with so many fifos in, each from a shim of its own."""

    def built(iron: Any) -> Any:
        from aie.iron.device import Tile

        fifos = [iron.ObjectFifo(tensor(64), name=f"f{n}") for n in range(count)]

        def body(*comes: Any) -> None:
            for come in comes:
                takes(come)

        worker = iron.Worker(body, [fifo.cons() for fifo in fifos], stack_size=1024)
        ends = [fifo.prod(tile=Tile(n, 0)) for n, fifo in enumerate(fifos)]
        return program(iron, fills_each, [tensor(64), *ends], worker)

    return design(built)


def crowded_shim(count: int) -> Record:
    """Fifos from one shim to cores of different columns."""

    def built(iron: Any) -> Any:
        from aie.iron.device import Tile

        fifos = [iron.ObjectFifo(tensor(64), name=f"f{n}") for n in range(count)]
        workers = [
            iron.Worker(takes, [fifo.cons()], tile=Tile(n, 2), stack_size=1024)
            for n, fifo in enumerate(fifos)
        ]
        ends = [fifo.prod(tile=Tile(0, 0)) for fifo in fifos]
        return program(iron, fills_each, [tensor(64), *ends], *workers)

    return design(built)


def fills_each(host: Any, *ends: Any) -> None:
    for end in ends:
        end.fill(host)


def joining(count: int) -> Record:
    """So many cores that one memory tile joins."""

    def built(iron: Any) -> Any:
        out = iron.ObjectFifo(tensor(64 * count), name="out")
        types = [tensor(64)] * count
        parts = out.prod().join([64 * n for n in range(count)], obj_types=types)
        workers = [iron.Worker(takes, [part.prod()], stack_size=1024) for part in parts]
        hosts = [tensor(64 * count), out.cons()]
        return program(iron, lambda a, out: out.drain(a, wait=True), hosts, *workers)

    return design(built)


def forwarding(size: int, depth: int = 2, arguments: int = 2, **fill: Any) -> Record:
    """To a memory tile and back to the host."""

    def built(iron: Any) -> Any:
        come = iron.ObjectFifo(tensor(64 if fill else size), name="in", depth=depth)
        out = come.cons().forward(name="out", depth=2)

        def sequence(*hosts: Any) -> None:
            hosts[-2].fill(hosts[0], **fill)
            hosts[-1].drain(hosts[1], wait=True)

        return program(iron, sequence, [tensor(size)] * arguments + [come.prod(), out.cons()])

    return design(built)


def holding(size: int) -> Record:
    """One object of that many words, in one core."""

    def built(iron: Any) -> Any:
        come = iron.ObjectFifo(tensor(size), name="in", depth=1)
        worker = iron.Worker(takes, [come.cons()], stack_size=1024)
        return program(iron, fills_each, [tensor(size), come.prod()], worker)

    return design(built)


def many_barriers(count: int) -> Record:
    def waits(come: Any, leave: Any, copy: Any, *barriers: Any) -> None:
        for barrier in barriers:
            barrier.wait_for_value(1)

    return copying(body=waits, more=lambda iron: [barrier(iron)[0] for _ in range(count)])


def barrier(iron: Any) -> list[Any]:
    return [iron.WorkerRuntimeBarrier()]


def gives_back(come: Any, leave: Any, copy: Any, barrier: Any) -> None:
    barrier.wait_for_value(1)
    barrier.release_with_value(1)


def kept_descriptors(rounds: int) -> Record:
    """Transfers that are done long before their group is finished."""

    def sequence(a: Any, b: Any, come: Any, leave: Any) -> None:
        from npu_kernels.iron_sim.aie.runtime import TaskGroup

        late = TaskGroup()
        come.fill(a, group=late)
        for n in range(rounds):
            soon = TaskGroup()
            for offset, group in ((0, late), (64, soon)):
                part = {"offset": 128 * n + offset, "sizes": [64], "strides": [1]}
                leave.drain(b, wait=group is soon, group=group, **part)
            soon.finish()
        late.finish()

    return copying(64, 2 * rounds, sequence=sequence)


def out_of_order() -> Record:
    """The second half is awaited first."""

    def sequence(a: Any, b: Any, come: Any, leave: Any) -> None:
        from npu_kernels.iron_sim.aie.runtime import TaskGroup

        groups = [TaskGroup(), TaskGroup()]
        come.fill(a, group=groups[0])
        for n, group in enumerate(groups):
            half = {"offset": 128 * n, "sizes": [128], "strides": [1]}
            leave.drain(b, wait=True, group=group, **half)
        for group in reversed(groups):
            group.finish()

    return copying(sequence=sequence)


def halves() -> Record:
    """Every other int16."""

    def sequence(a: Any, b: Any, come: Any, leave: Any) -> None:
        come.fill(a, sizes=[256], strides=[2])
        leave.drain(b, wait=True)

    return copying(64, 8, dtype=np.int16, sequence=sequence)


def rereading(*, awaited: bool) -> Record:
    """The second half reads what the first half wrote."""

    def sequence(a: Any, b: Any, come: Any, leave: Any) -> None:
        from npu_kernels.iron_sim.aie.runtime import TaskGroup

        first, second = TaskGroup(), TaskGroup()
        half = {"sizes": [128], "strides": [1]}
        come.fill(a, group=first, **half)
        leave.drain(b, group=first, wait=True, **half)
        if awaited:
            first.finish()
        come.fill(b, group=second, offset=64, **half)
        leave.drain(b, group=second, wait=True, offset=128, **half)
        if not awaited:
            first.finish()
        second.finish()

    return copying(sequence=sequence)


def unawaited() -> Record:
    def sequence(a: Any, b: Any, come: Any, leave: Any) -> None:
        come.fill(a, wait=True)
        leave.drain(b)

    return copying(sequence=sequence)


def misplaced() -> Record:
    from npu_kernels.iron_sim.aie.device import Tile

    return copying(tile=Tile(9, 2))


def loops(make: Callable[[int], Any]) -> Callable[..., None]:
    """A body that copies a thousand times, in a loop of that kind."""

    def body(come: Any, leave: Any, copy: Any) -> None:
        for _ in make(1000):
            copies_once(come, leave, copy)

    return body


def another_kernel(iron: Any) -> list[Any]:
    types = [tensor(64), tensor(64)]
    return [iron.ExternalFunction("again", source_file="copy.cc", arg_types=types)]


def two_kernels(come: Any, leave: Any, copy: Any, again: Any) -> None:
    copies_once(come, leave, copy)
    copies_once(come, leave, again)

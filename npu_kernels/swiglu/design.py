"""SwiGLU of N values, a multiple of 64: a part of them on one core of each column."""

from pathlib import Path
from typing import Any

from npu_kernels.designs import array, external, program, span, worker

NAMES = ("gate", "up", "y")


def build(N: int) -> Any:
    from aie import iron
    from aie.iron.device import Tile

    cores = next(count for count in (8, 4, 2, 1) if N % (64 * count) == 0)
    part = N // cores
    kernel, types = external(Path(__file__).parent, "swiglu", {"TILE": part})

    def activated(gate: Any, up: Any, y: Any, kernel: Any) -> None:
        kernel(gate.acquire(1), up.acquire(1), y.acquire(1), part)
        for fifo in (gate, up, y):
            fifo.release(1)

    workers, ends = [], []
    for column in range(cores):
        shim = Tile(column, 0)
        gate, up, y = (iron.ObjectFifo(types[n], name=f"{n}{column}", depth=1) for n in NAMES)
        given = [gate.cons(), up.cons(), y.prod(), kernel]
        workers.append(worker(activated, given, tile=Tile(column, 2)))
        ends.append([gate.prod(tile=shim), up.prod(tile=shim), y.cons(tile=shim)])

    def sequence(gates: Any, ups: Any, ys: Any, ends: Any) -> None:
        group = iron.TaskGroup()
        for column, (gate, up, y) in enumerate(ends):
            tap = span(N, column * part, part)
            gate.fill(gates, tap=tap, group=group)
            up.fill(ups, tap=tap, group=group)
            y.drain(ys, tap=tap, wait=True, group=group)
        group.finish()

    return program(sequence, [array(N)] * 3 + [ends], workers)

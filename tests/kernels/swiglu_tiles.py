"""A design for fakexrt to run: tiles of gate and up in, silu(gate) * up out, n values a tile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import npu_kernels.swiglu

SOURCE = Path(npu_kernels.swiglu.__file__).parent / "kernel.cc"


def build(n: int, tiles: int) -> Any:
    from aie import iron
    from aie.iron.controlflow import range_
    from aie.iron.device import from_name

    tile = np.ndarray[(n,), np.dtype[np.float32]]
    whole = np.ndarray[(n * tiles,), np.dtype[np.float32]]
    names = ("gate", "up", "y")
    fifos = [iron.ObjectFifo(tile, name=name, depth=2) for name in names]
    gate, up, y = fifos
    kernel = iron.ExternalFunction(
        "swiglu", source_file=str(SOURCE), arg_types=[tile, tile, tile, np.int32]
    )

    def body(gate: Any, up: Any, y: Any, kernel: Any) -> None:
        for _ in range_(tiles):
            parts = [fifo.acquire(1) for fifo in (gate, up, y)]
            kernel(*parts, n)
            for fifo in (gate, up, y):
                fifo.release(1)

    def sequence(a: Any, b: Any, c: Any, gate: Any, up: Any, y: Any) -> None:
        group = iron.TaskGroup()
        gate.fill(a, group=group)
        up.fill(b, group=group)
        y.drain(c, wait=True, group=group)
        group.finish()

    worker = iron.Worker(body, [gate.cons(), up.cons(), y.prod(), kernel], stack_size=0x1800)
    runtime = iron.Runtime(sequence, [whole, whole, whole, gate.prod(), up.prod(), y.cons()])
    return iron.Program(from_name("npu2"), runtime, workers=[worker])

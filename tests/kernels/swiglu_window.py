"""swiglu_tiles over a window of longer buffers: `start`, in tiles, is a value; so is `word`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import npu_kernels.swiglu
from npu_kernels.manifest import Design, HostArgument, Value

SOURCE = Path(npu_kernels.swiglu.__file__).parent / "kernel.cc"
ROOM = 16  # tiles of each buffer


def design(module: str = __name__, values: tuple[Value, ...] | None = None) -> Design:
    arguments = (("gate", "in"), ("up", "in"), ("y", "out"))
    bounds = (Value("start", "offset", f"{ROOM} - tiles"), Value("word", "rtp", "1000", "3"))
    return Design(
        "swiglu_window",
        module,
        ("n", "tiles"),
        tuple(HostArgument(name, "float32", f"4 * n * {ROOM}", way) for name, way in arguments),
        bounds if values is None else values,
    )


def build(n: int, tiles: int, start: int, word: int) -> Any:
    from aie import iron
    from aie.helpers.taplib import TensorAccessPattern
    from aie.iron.controlflow import range_
    from aie.iron.device import from_name

    tile = np.ndarray[(n,), np.dtype[np.float32]]
    whole = np.ndarray[(n * ROOM,), np.dtype[np.float32]]
    gate, up, y = (iron.ObjectFifo(tile, name=name, depth=2) for name in ("gate", "up", "y"))
    words_type = np.ndarray[(16,), np.dtype[np.int32]]
    words = iron.Buffer(words_type, name="words", use_write_rtp=True)
    kernel = iron.ExternalFunction(
        "swiglu", source_file=str(SOURCE), arg_types=[tile, tile, tile, np.int32]
    )

    def body(gate: Any, up: Any, y: Any, words: Any, kernel: Any) -> None:
        for _ in range_(tiles):
            kernel(*(fifo.acquire(1) for fifo in (gate, up, y)), n)
            for fifo in (gate, up, y):
                fifo.release(1)

    def sequence(a: Any, b: Any, c: Any, gate: Any, up: Any, y: Any, words: Any) -> None:
        tap = TensorAccessPattern((1, n * ROOM), start * n, [1, 1, 1, n * tiles], [0, 0, 0, 1])
        words[0] = word
        group = iron.TaskGroup()
        gate.fill(a, tap=tap, group=group)
        up.fill(b, tap=tap, group=group)
        y.drain(c, tap=tap, wait=True, group=group)
        group.finish()

    given = [gate.cons(), up.cons(), y.prod(), words, kernel]
    worker = iron.Worker(body, given, stack_size=0x1800)
    ends = [gate.prod(), up.prod(), y.cons(), words]
    runtime = iron.Runtime(sequence, [whole, whole, whole, *ends])
    return iron.Program(from_name("npu2"), runtime, workers=[worker])

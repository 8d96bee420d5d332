"""y = W x: every core makes a table of x, and takes 32 of every 128 rows of its column."""

from pathlib import Path
from typing import Any

import numpy as np

from npu_kernels.columns import COLUMNS
from npu_kernels.designs import array, external, program, span, worker
from npu_kernels.qlinear.reference import CHUNK_BYTES, CORES, ROWS

HERE = Path(__file__).parent


def build(N: int, K: int) -> Any:
    return product(HERE, "qlinear", CHUNK_BYTES, N, K)


def product(folder: Path, symbol: str, chunk: int, N: int, K: int) -> Any:
    """With a kernel that takes so many bytes of weights at a time."""
    from aie import iron
    from aie.iron.controlflow import range_
    from aie.iron.device import Tile

    rows = CORES * ROWS
    steps, fours = -(-K // 256), -(-N // rows)
    columns = min(COLUMNS, fours)
    counts = [fours // columns + (column < fours % columns) for column in range(columns)]
    make, made = external(HERE, "qlinear_table", {"K": K})
    multiply, types = external(folder, symbol, {"K": K})

    def core(
        x: Any, weights: Any, y: Any, table: Any, make: Any, multiply: Any, count: int
    ) -> None:
        for step in range_(steps):
            make(x.acquire(1), table, step)
            x.release(1)
        for _ in range_(count):
            total = y.acquire(1)
            for step in range_(steps):
                multiply(weights.acquire(1), table, total, step)
                weights.release(1)
            y.release(1)

    x = iron.ObjectFifo(made["x"], name="x", depth=2)
    weights, y, workers = [], [], []
    for column, count in enumerate(counts):
        shim, memtile = Tile(column, 0), Tile(column, 1)
        whole = iron.ObjectFifo(array(CORES * chunk, np.uint8), name=f"weights{column}", depth=2)
        total = iron.ObjectFifo(array(rows), name=f"y{column}", depth=2)
        chunks, sums = [types["chunk"]] * CORES, [types["y"]] * CORES
        parts = whole.cons().split(
            [n * chunk for n in range(CORES)], obj_types=chunks, tile=memtile
        )
        results = total.prod().join([n * ROWS for n in range(CORES)], obj_types=sums, tile=memtile)
        for n, (part, result) in enumerate(zip(parts, results, strict=True)):
            table = iron.Buffer(made["table"], name=f"table{column}_{n}")
            given = [x.cons(), part.cons(), result.prod(), table, make, multiply, count]
            workers.append(worker(core, given, tile=Tile(column, 2 + n)))
        weights.append(whole.prod(tile=shim))
        y.append(total.cons(tile=shim))

    def sequence(activations: Any, packed: Any, product: Any, x: Any, weights: Any, y: Any) -> None:
        group, size, done = iron.TaskGroup(), CORES * chunk * steps, 0
        x.fill(activations, group=group)
        for whole, total, count in zip(weights, y, counts, strict=True):
            whole.fill(packed, tap=span(fours * size, done * size, count * size), group=group)
            tap = span(fours * rows, done * rows, count * rows)
            total.drain(product, tap=tap, wait=True, group=group)
            done += count
        group.finish()

    hosts = [
        array(256 * steps),
        array(fours * CORES * chunk * steps, np.uint8),
        array(fours * rows),
    ]
    return program(sequence, [*hosts, x.prod(tile=Tile(0, 0)), weights, y], workers)

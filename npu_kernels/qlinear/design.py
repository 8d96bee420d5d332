"""y = W x: every core makes a table of x, and takes 32 of every 128 rows of its column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npu_kernels.columns import COLUMNS
from npu_kernels.designs import array, external, program, span, worker
from npu_kernels.qlinear.reference import CHUNK_BYTES, CORES, ROWS

HERE = Path(__file__).parent
FOUR_ROWS = CORES * ROWS


@dataclass(frozen=True, slots=True)
class Best:
    """Kernels that note the largest of y (lm_head), and the type of what a core keeps for them."""

    choose: Any
    finish: Any
    kept: Any


def build(N: int, K: int) -> Any:
    return product(HERE, "qlinear", CHUNK_BYTES, N, K)


def product(folder: Path, symbol: str, chunk: int, N: int, K: int, best: Best | None = None) -> Any:
    """With a kernel that takes so many bytes of weights at a time. With `best`, what each core of
    each column has found comes after y, in a buffer of its own with room for all columns.
    """
    from aie import iron
    from aie.iron.controlflow import range_
    from aie.iron.device import Tile

    steps, fours = -(-K // 256), -(-N // FOUR_ROWS)
    columns = min(COLUMNS, fours)
    counts = [fours // columns + (column < fours % columns) for column in range(columns)]
    make, made = external(HERE, "qlinear_table", {"K": K})
    multiply, types = external(folder, symbol, {"K": K})
    x = iron.ObjectFifo(made["x"], name="x", depth=2)
    weights, y, workers = [], [], []
    for column, count in enumerate(counts):
        whole, parts, total, results = _fifos(column, chunk, types)
        for n, (part, result) in enumerate(zip(parts, results, strict=True)):
            table = iron.Buffer(made["table"], name=f"table{column}_{n}")
            given = [range_, x.cons(), part.cons(), result.prod(), table, make, multiply]
            given += [steps, count]
            if best:
                kept = iron.Buffer(best.kept, name=f"best{column}_{n}")
                first = FOUR_ROWS * sum(counts[:column]) + ROWS * n
                given += [kept, best.choose, best.finish, first, N]
            workers.append(worker(_core, given, tile=Tile(column, 2 + n)))
        weights.append(whole.prod(tile=Tile(column, 0)))
        y.append(total.cons(tile=Tile(column, 0)))

    def sequence(activations: Any, packed: Any, product: Any, *given: Any) -> None:
        *found, x, weights, y = given
        group, size, done = iron.TaskGroup(), CORES * chunk * steps, 0
        x.fill(activations, group=group)
        for column, (whole, total, count) in enumerate(zip(weights, y, counts, strict=True)):
            whole.fill(packed, tap=span(fours * size, done * size, count * size), group=group)
            tap = span(fours * FOUR_ROWS, done * FOUR_ROWS, count * FOUR_ROWS)
            total.drain(product, tap=tap, wait=True, group=group)
            for each in found:
                tap = span(COLUMNS * FOUR_ROWS, column * FOUR_ROWS, FOUR_ROWS)
                total.drain(each, tap=tap, wait=True, group=group)
            done += count
        group.finish()

    hosts = [
        array(256 * steps),
        array(fours * CORES * chunk * steps, np.uint8),
        array(fours * FOUR_ROWS),
    ]
    if best:
        hosts.append(array(COLUMNS * FOUR_ROWS))
    return program(sequence, [*hosts, x.prod(tile=Tile(0, 0)), weights, y], workers)


def _fifos(column: int, chunk: int, types: Any) -> tuple[Any, Sequence[Any], Any, Sequence[Any]]:
    """Of a column: its chunks, each core's of them, its rows of y, each core's of them."""
    from aie import iron
    from aie.iron.device import Tile

    whole = iron.ObjectFifo(array(CORES * chunk, np.uint8), name=f"weights{column}", depth=2)
    total = iron.ObjectFifo(array(FOUR_ROWS), name=f"y{column}", depth=2)
    chunks, sums, memtile = [types["chunk"]] * CORES, [types["y"]] * CORES, Tile(column, 1)
    parts = whole.cons().split([n * chunk for n in range(CORES)], obj_types=chunks, tile=memtile)
    places = [n * ROWS for n in range(CORES)]
    return whole, parts, total, total.prod().join(places, obj_types=sums, tile=memtile)


def _core(
    range_: Any,
    x: Any,
    weights: Any,
    y: Any,
    table: Any,
    make: Any,
    multiply: Any,
    steps: int,
    count: int,
    *best: Any,
) -> None:
    for step in range_(steps):
        make(x.acquire(1), table, step)
        x.release(1)
    for number in range_(count):
        total = y.acquire(1)
        for step in range_(steps):
            multiply(weights.acquire(1), table, total, step)
            weights.release(1)
        if best:
            kept, choose, _, first, words = best
            choose(total, kept, number * FOUR_ROWS + first, number, words)
        y.release(1)
    if best:
        kept, _, finish, *_ = best
        finish(kept, y.acquire(1))
        y.release(1)

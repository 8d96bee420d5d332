"""QLinear of many tokens: up to eight cores, each with rows of its own. One more turns activations
into tiles, for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npu_kernels.columns import Column, columns_of, program
from npu_kernels.designs import array, external
from npu_kernels.manifest import DATA_BYTES_MAX, STACK_BYTES
from npu_kernels.qlinear.reference import CHUNK_BYTES, COLUMNS, CORES, ROWS

FOLDER = Path(__file__).parent
GROUPS = (4, 2, 1)  # of rows, whose sums a core keeps: their chunks lie side by side
RUN = 1024  # bytes of a chunk: a transfer's innermost dimension is below 4096


def build(T: int, N: int, K: int) -> Any:
    kernels = [external(FOLDER, symbol, {"T": T}) for symbol in ("qgemm", "qgemm_finish")]
    return multiplying(T, N, K, kernels, CHUNK_BYTES)


def multiplying(
    T: int, N: int, K: int, kernels: Sequence[tuple[Any, dict[str, Any]]], chunk_bytes: int
) -> Any:
    """By the kernels that multiply and finish."""
    from aie import iron
    from aie.iron.controlflow import range_

    count, slabs = columns_of(N // ROWS), -(-K // COLUMNS)
    held = STACK_BYTES + 2 * chunk_bytes + (512 + 256) * T  # x, and y twice
    most = (DATA_BYTES_MAX - held) // (128 * T)
    some = next(n for n in GROUPS if n <= most and N // ROWS // count % n == 0)
    rows, row_types = external(FOLDER, "qgemm_rows", {"T": T})
    (multiply, types), (finish, finished) = kernels
    tiles = iron.ObjectFifo(row_types["tiles"], name="tiles", depth=2)

    def tile(x: Any, tiles: Any, rows: Any) -> None:
        to = tiles.acquire(1)
        for eight in range_(T // 8):
            rows(x.acquire(1), to, eight)
            x.release(1)
        tiles.release(1)

    def body(chunks: Any, y: Any, tiles: Any, sums: Any, multiply: Any, finish: Any) -> None:
        for slab in range_(slabs):
            x = tiles.acquire(1)
            for each in sums:
                multiply(chunks.acquire(1), x, each, T, slab)
                chunks.release(1)
            tiles.release(1)
        for each in sums:
            finish(each, y.acquire(1), T)
            y.release(1)

    first = Column(0, {"x": row_types["x"]}, {}, depth=2, row=3)
    columns = [first.runs(tile, tiles.prod(), rows)]
    for number in range(count):
        column = Column(number, {"chunk": types["chunk"]}, {"y": finished["y"]}, depth=2)
        sums = [iron.Buffer(types["sums"], name=f"sums{number}.{n}") for n in range(some)]
        columns.append(column.runs(body, tiles.cons(depth=1), sums, multiply, finish))
    weights = array(N // ROWS * slabs * chunk_bytes, np.uint8)
    hosts = [array((T - 1) * K + slabs * COLUMNS), weights, array(T * N)]
    return program(_sequence(T, N, K, some, chunk_bytes), hosts, columns)


def _sequence(T: int, N: int, K: int, some: int, chunk_bytes: int) -> Any:
    """Round by round, each of `some` groups of rows a core."""
    from aie import iron
    from aie.helpers.taplib import TensorAccessPattern

    count = -(-K // COLUMNS)

    def sequence(buffers: Sequence[Any], ends: Sequence[Sequence[Any]]) -> None:
        x, weights, y = buffers
        (into_rows,), *cores = ends
        # Beyond a token's values are the next one's, by which nothing is multiplied.
        slabs = TensorAccessPattern(x.shape, 0, [count, T, COLUMNS], [COLUMNS, K, 1])
        share = N // ROWS // len(cores)
        for start in range(0, share, some):
            group = iron.TaskGroup()
            into_rows.fill(x, tap=slabs, group=group)
            for number, (into_chunks, out_of_y) in enumerate(cores):
                own = number * share + start
                four, place = divmod(own, CORES)
                chunks = TensorAccessPattern(
                    weights.shape,
                    (four * count * CORES + place) * chunk_bytes,
                    [count, some * chunk_bytes // RUN, RUN],
                    [CORES * chunk_bytes, RUN, 1],
                )
                into_chunks.fill(weights, tap=chunks, group=group)
                places = TensorAccessPattern(y.shape, own * ROWS, [some, T, ROWS], [ROWS, N, 1])
                out_of_y.drain(y, tap=places, wait=True, group=group)
            group.finish()

    return sequence

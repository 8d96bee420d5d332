"""Attention of T tokens: for each KV head a column of four cores, each with a quarter of them.
Every block of rows goes to all four.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from npu_kernels.columns import COLUMNS
from npu_kernels.designs import array, external, program, span, worker

FOLDER = Path(__file__).parent
CORES = 4  # of a column
POSITION, BLOCKS = range(2)  # the words that a core is told


def build(
    T: int,
    HEADS: int,
    KV_HEADS: int,
    W: int,
    C: int,
    SCALE: int,
    position: int = 0,
    blocks: int = 1,
) -> Any:
    from aie.helpers.taplib import TensorAccessPattern
    from aie.iron import TaskGroup

    heads = HEADS // KV_HEADS
    shape = {"W": W, "ROWS": T // CORES * heads, "HEADS": heads, "SCALE": SCALE}
    kernels, types = _kernels(shape)
    columns = [_column(n, shape, kernels, types) for n in range(min(COLUMNS, KV_HEADS))]
    sizes = T * HEADS * W, KV_HEADS * C * 2 * W, T * HEADS * W

    def own(head: int) -> Any:
        """What the tokens have of a KV head's queries."""
        return TensorAccessPattern(
            (1, sizes[0]), head * heads * W, [1, T, heads, W], [0, HEADS * W, W, 1]
        )

    def sequence(query: Any, rows: Any, y: Any, ends: Any, told: Any) -> None:
        for words in chain(*told):
            words[POSITION], words[BLOCKS] = position, blocks
        for start in range(0, KV_HEADS, COLUMNS):
            group = TaskGroup()
            for head, fifos in zip(range(start, KV_HEADS), ends, strict=False):
                into_queries, into_blocks, out_of_y = fifos
                into_queries.fill(query, tap=own(head), group=group)
                tap = span(sizes[1], head * C * 2 * W, blocks * 32 * W)
                into_blocks.fill(rows, tap=tap, group=group)
                out_of_y.drain(y, tap=own(head), wait=True, group=group)
            group.finish()

    hosts = [array(sizes[0]), array(sizes[1], np.uint16), array(sizes[2])]
    workers, ends, told = map(list, zip(*columns, strict=True))
    return program(sequence, [*hosts, ends, told], list(chain(*workers)))


def _kernels(shape: Mapping[str, int]) -> tuple[list[Any], dict[str, Any]]:
    kernels: list[Any] = []
    types: dict[str, Any] = {}
    for step in ("_start", "", "_finish"):
        kernel, more = external(FOLDER, f"flash_attention{step}", shape)
        kernels.append(kernel)
        types |= more
    return kernels, types


def _column(
    number: int, shape: Mapping[str, int], kernels: list[Any], types: Mapping[str, Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    """Workers, the fifos' ends at the host, and the words that each core is told."""
    from aie.iron import Buffer, ObjectFifo
    from aie.iron.controlflow import range_
    from aie.iron.device import Tile

    W, rows, heads = shape["W"], shape["ROWS"], shape["HEADS"]

    def body(query: Any, blocks: Any, y: Any, *rest: Any) -> None:
        first, words, operands, state, start, attend, finish = rest
        given = query.acquire(1)
        for eight in range_(rows // 8):
            start(given, operands, state, W, eight, shape["SCALE"])
        query.release(1)
        for block in range_(words[BLOCKS]):
            places = W, rows, heads, words[POSITION] + first, block
            attend(blocks.acquire(1), operands, state, *places)
            blocks.release(1)
        out = y.acquire(1)
        for eight in range_(rows // 8):
            finish(state, out, W, eight)
        y.release(1)

    shim, memtile = Tile(number, 0), Tile(number, 1)
    queries, results = (
        ObjectFifo(array(CORES * rows * W), name=f"{name}{number}", depth=1)
        for name in ("queries", "y")
    )
    offsets = [n * rows * W for n in range(CORES)]
    each = {"depths": [1] * CORES, "obj_types": [types["query"]] * CORES, "tile": memtile}
    parts, joined = queries.cons().split(offsets, **each), results.prod().join(offsets, **each)
    blocks = ObjectFifo(types["block"], name=f"blocks{number}", depth=1)
    workers, told = [], []
    for n in range(CORES):
        words = Buffer(array(16, np.int32), name=f"words{number}_{n}", use_write_rtp=True)
        resident = [
            Buffer(types[name], name=f"{name}{number}_{n}") for name in ("operands", "state")
        ]
        ends = [parts[n].cons(), blocks.cons(), joined[n].prod()]
        given = [*ends, n * (rows // heads), words, *resident, *kernels]
        workers.append(worker(body, given, tile=Tile(number, 2 + n)))
        told.append(words)
    ends = [queries.prod(tile=shim), blocks.prod(tile=shim), results.cons(tile=shim)]
    return workers, ends, told

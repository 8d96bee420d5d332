"""One token's attention, a column of four cores for each KV head. The first core appends the row
and attends to the block that it is in; all four take turns with the blocks before, and what a core
has found is merged into what the one before it has.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from npu_kernels.attention.reference import ANGLES, HEADS_MAX, TOKENS
from npu_kernels.columns import COLUMNS
from npu_kernels.designs import array, external, program, span, worker

CORES = 4  # of a column
ROUNDS, BLOCK, BEFORE, LENGTH = range(4)  # the words that a core is told


def build(
    HEADS: int,
    KV_HEADS: int,
    W: int,
    R: int,
    C: int,
    SCALE: int,
    WINDOW: int,
    position: int = 0,
    block: int = 0,
    rounds: int = 1,
) -> Any:
    from aie.helpers.taplib import TensorAccessPattern
    from aie.iron import TaskGroup

    shape = {"HEADS": HEADS, "KV_HEADS": KV_HEADS, "W": W, "R": R, "SCALE": SCALE, "WINDOW": WINDOW}
    kernels, types = _kernels(shape)
    columns = [_column(n, shape, kernels, types) for n in range(min(COLUMNS, KV_HEADS))]
    wide, size, record = HEADS // KV_HEADS * W, 32 * W, -(-2 * R // ANGLES) * ANGLES
    sizes = (HEADS + 2 * KV_HEADS) * W, record * C, KV_HEADS * C // TOKENS * size, HEADS * W

    def head(number: int, group: Any, hosts: Any, fifos: Any) -> None:
        (qkv, angles, rows, y), (token, blocks, after, attended) = hosts, fifos
        token.fill(qkv, tap=span(sizes[0], number * wide, HEADS_MAX * W), group=group)
        apart = [0, 0, KV_HEADS * W, 1]
        pair = TensorAccessPattern((1, sizes[0]), (HEADS + number) * W, [1, 1, 2, W], apart)
        token.fill(qkv, tap=pair, group=group)
        token.fill(angles, tap=span(sizes[1], position * record, record), group=group)
        start = number * C // TOKENS * size
        newest, again = start + block * size, [CORES, 1, 1, size]
        each = TensorAccessPattern((1, sizes[2]), newest, again, [0, 0, 0, 1])
        blocks.fill(rows, tap=each, group=group)
        blocks.fill(rows, tap=span(sizes[2], start, rounds * CORES * size), group=group)
        after.drain(rows, tap=span(sizes[2], newest, size), wait=True, group=group)
        attended.drain(y, tap=span(sizes[3], number * wide, wide), wait=True, group=group)

    def sequence(*given: Any) -> None:
        *hosts, ends, told = given
        for words in chain(*told):
            words[ROUNDS], words[BLOCK] = rounds, block
            words[BEFORE], words[LENGTH] = TOKENS * block, position + 1
        for start in range(0, KV_HEADS, COLUMNS):
            group = TaskGroup()
            for number, fifos in zip(range(start, KV_HEADS), ends, strict=False):
                head(number, group, hosts, fifos)
            group.finish()

    hosts = [array(sizes[0]), array(sizes[1]), array(sizes[2], np.uint16), array(sizes[3])]
    workers, ends, told = map(list, zip(*columns, strict=True))
    return program(sequence, [*hosts, ends, told], list(chain(*workers)))


def _kernels(shape: Mapping[str, int]) -> tuple[list[Any], dict[str, Any]]:
    """In the order in which cores take them, and the types of their buffers."""
    kernels: list[Any] = []
    types: dict[str, Any] = {}
    for step in ("_start", "", "_merge", "_append", "_finish"):
        kernel, more = external(Path(__file__).parent, f"attention{step}", shape)
        kernels.append(kernel)
        types |= more
    return kernels, types


def _column(
    number: int, shape: Mapping[str, int], kernels: Sequence[Any], types: Mapping[str, Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    """Workers, the fifos' ends at the host, and the words that each core is told."""
    from aie.iron import Buffer, ObjectFifo
    from aie.iron.controlflow import range_
    from aie.iron.device import Tile

    size, deep = 32 * shape["W"], 2 if shape["W"] <= 128 else 1  # blocks in 64 KB
    record, after, y = (
        ObjectFifo(types[name], name=f"{name}{number}", depth=1)
        for name in ("record", "after", "y")
    )
    states = [
        ObjectFifo(types["state"], name=f"state{number}_{n}", depth=1) for n in range(1, CORES)
    ]
    four = ObjectFifo(array(CORES * size, np.uint16), name=f"blocks{number}", depth=2)
    blocks = four.cons().split(
        [n * size for n in range(CORES)],
        depths=[deep] * CORES,
        obj_types=[types["block"]] * CORES,
        tile=Tile(number, 1),
    )
    workers, told = [], []
    for n in range(CORES):
        words = Buffer(array(16, np.int32), name=f"words{number}_{n}", use_write_rtp=True)
        operands = Buffer(types["operands"], name=f"operands{number}_{n}")
        below = [state.cons() for state in states[n : n + 1]]
        given = [range_, n, shape, record.cons(), blocks[n].cons(), operands, words]
        if n:
            given += [*kernels[:3], states[n - 1].prod(), *below]
        else:
            state = Buffer(types["state"], name=f"state{number}_0")
            given += [*kernels, state, after.prod(), y.prod(), *below]
        workers.append(worker(_other if n else _first, given, tile=Tile(number, 2 + n)))
        told.append(words)
    shim = Tile(number, 0)
    ends = [record.prod(tile=shim), four.prod(tile=shim), after.cons(tile=shim), y.cons(tile=shim)]
    return workers, ends, told


def _since(shape: Mapping[str, int], words: Any) -> Any:
    """The first token that counts, less than none for all. Words are there once a record is."""
    return words[LENGTH] - shape["WINDOW"] if shape["WINDOW"] else 0


def _first(*given: Any) -> None:
    range_, _, shape, record, blocks, operands, words, start, attend, merge, *own = given
    append, finish, state, after, y, below = own
    W, R = shape["W"], shape["R"]
    token = record.acquire(1)
    since = _since(shape, words)
    start(token, operands, state, W, R, shape["SCALE"])
    newest = after.acquire(1)
    append(token, blocks.acquire(1), newest, W, R, words[LENGTH])
    record.release(1)
    blocks.release(1)
    attend(newest, operands, state, W, words[BLOCK], since, words[LENGTH])
    after.release(1)
    for turn in range_(words[ROUNDS]):
        attend(blocks.acquire(1), operands, state, W, turn * CORES, since, words[BEFORE])
        blocks.release(1)
    merge(below.acquire(1), state, W)
    below.release(1)
    finish(state, y.acquire(1), W, shape["HEADS"] // shape["KV_HEADS"])
    y.release(1)


def _other(*given: Any) -> None:
    range_, n, shape, record, blocks, operands, words, start, attend, merge, above, *below = given
    W = shape["W"]
    state = above.acquire(1)
    start(record.acquire(1), operands, state, W, shape["R"], shape["SCALE"])
    record.release(1)
    since = _since(shape, words)
    blocks.acquire(1)  # the newest: the first core's
    blocks.release(1)
    for turn in range_(words[ROUNDS]):
        attend(blocks.acquire(1), operands, state, W, turn * CORES + n, since, words[BEFORE])
        blocks.release(1)
    for fifo in below:
        merge(fifo.acquire(1), state, W)
        fifo.release(1)
    above.release(1)

"""Positions of T tokens: queries turned, keys and values put into blocks of rows; a core for each
KV head. All that is no block comes in lines of W, a block's tokens after another's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npu_kernels.attention.reference import TOKENS
from npu_kernels.columns import COLUMNS, Column
from npu_kernels.designs import array, external, program, span

FOLDER = Path(__file__).parent
SYMBOLS = ("rotary_hold", "rotary_turn", "rotary_append")
FIRST = 0  # the word that a core is told


def build(
    T: int,
    HEADS: int,
    KV_HEADS: int,
    W: int,
    R: int,
    C: int,
    position: int = 0,
    block: int = 0,
    first: int = 0,
) -> Any:
    shape = {"T": T, "HEADS": HEADS, "KV_HEADS": KV_HEADS, "W": W, "R": R, "C": C}
    kernels: list[Any] = []
    types: dict[str, Any] = {}
    for symbol in SYMBOLS:
        kernel, more = external(FOLDER, symbol, shape)
        kernels.append(kernel)
        types |= more
    columns, told = [], []
    for number in range(min(COLUMNS, KV_HEADS)):
        column, words = _column(number, shape, kernels, types)
        columns.append(column)
        told.append(words)
    hosts = [
        array(T * (HEADS + 2 * KV_HEADS) * W),
        array(C * W * -(-2 * R // W)),
        array(KV_HEADS * C * 2 * W, np.uint16),
        array(T * HEADS * W),
    ]
    ends = [column.host for column in columns]
    sequence = _sequence(shape, position, block, first)
    return program(sequence, [*hosts, ends, told], [column.worker for column in columns])


def _column(
    number: int, shape: Mapping[str, int], kernels: list[Any], types: Mapping[str, Any]
) -> tuple[Column, Any]:
    """And the words that its core is told."""
    from aie.iron import Buffer
    from aie.iron.controlflow import range_

    W, R, heads = shape["W"], shape["R"], shape["HEADS"] // shape["KV_HEADS"]
    lines = -(-2 * R // W)

    def body(given: Any, before: Any, after: Any, y: Any, *rest: Any) -> None:
        words, angles, key, hold, turn, append = rest
        for block in range_(shape["T"] // TOKENS):
            for line in range_(TOKENS * lines):
                hold(given.acquire(1), angles, W, line)
                given.release(1)
            old, new = before.acquire(1), after.acquire(1)
            for slot in range_(TOKENS):
                turn(given.acquire(1), angles, key, W, R, slot, lines * W)
                given.release(1)
                token = block * TOKENS + slot
                append(key, given.acquire(1), old, new, W, token, words[FIRST])
                given.release(1)
            before.release(1)
            after.release(1)
            for slot in range_(TOKENS):
                for _ in range_(heads):
                    turn(given.acquire(1), angles, y.acquire(1), W, R, slot, lines * W)
                    given.release(1)
                    y.release(1)

    words = Buffer(array(16, np.int32), name=f"words{number}", use_write_rtp=True)
    resident = [Buffer(types[name], name=f"{name}{number}") for name in ("angles", "key")]
    filled = {"line": types["line"], "before": types["before"]}
    drained = {"after": types["after"], "y": types["y"]}
    column = Column(number, filled, drained, depths={"line": 2, "y": 2})
    return column.runs(body, words, *resident, *kernels), words


def _sequence(shape: Mapping[str, int], position: int, block: int, first: int) -> Any:
    from aie.iron import TaskGroup

    T, KV_HEADS, W = shape["T"], shape["KV_HEADS"], shape["W"]
    size, room = 32 * W, shape["C"] // TOKENS
    record = W * -(-2 * shape["R"] // W)
    lines_of, queries_of = _taps(shape)

    def sequence(*given: Any) -> None:
        qkv, angles, rows, query, ends, told = given
        for words in told:
            words[FIRST] = first
        for start in range(0, KV_HEADS, COLUMNS):
            pairs = list(zip(range(start, KV_HEADS), ends, strict=False))
            whole = TaskGroup()
            for head, (_, into_before, out_of_after, out_of_y) in pairs:
                begin = (head * room + block) * size
                blocks = span(KV_HEADS * room * size, begin, T // TOKENS * size)
                into_before.fill(rows, tap=blocks, group=whole)
                out_of_after.drain(rows, tap=blocks, wait=True, group=whole)
                out_of_y.drain(query, tap=queries_of(head), wait=True, group=whole)
            for number in range(0, T, TOKENS):
                group, begin = TaskGroup(), (position + number) * record
                own = span(shape["C"] * record, begin, TOKENS * record)
                for head, (into_lines, *_) in pairs:
                    both, queries = lines_of(number, head)
                    into_lines.fill(angles, tap=own, group=group)
                    into_lines.fill(qkv, tap=both, group=group)
                    into_lines.fill(qkv, tap=queries, wait=True, group=group)
                group.finish()
            whole.finish()

    return sequence


def _taps(shape: Mapping[str, int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Of a block's tokens a KV head's keys with values, and queries; of all tokens its queries."""
    from aie.helpers.taplib import TensorAccessPattern

    T, HEADS, KV_HEADS, W = (shape[name] for name in ("T", "HEADS", "KV_HEADS", "W"))
    heads, row = HEADS // KV_HEADS, (HEADS + 2 * KV_HEADS) * W

    def lines_of(token: int, head: int) -> list[Any]:
        start, whole = token * row, (1, T * row)
        pairs, queries = [1, TOKENS, 2, W], [1, TOKENS, heads, W]
        apart = [[0, row, KV_HEADS * W, 1], [0, row, W, 1]]
        return [
            TensorAccessPattern(whole, start + (HEADS + head) * W, pairs, apart[0]),
            TensorAccessPattern(whole, start + head * heads * W, queries, apart[1]),
        ]

    def queries_of(head: int) -> Any:
        sizes, strides = [1, T, heads, W], [0, HEADS * W, W, 1]
        return TensorAccessPattern((1, T * HEADS * W), head * heads * W, sizes, strides)

    return lines_of, queries_of

"""GatedDelta of 32 tokens: up to eight cores, each with some key heads and the value heads that
read them, one after another. A head's state is read once and written once, where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_kernels.bf16 import bits_of
from npu_kernels.columns import COLUMNS as CORES_MAX
from npu_kernels.columns import Column, columns_of, program
from npu_kernels.designs import array, external, span
from npu_kernels.gated_delta_chunk.reference import COLUMNS, PART, TOKENS

FOLDER = Path(__file__).parent
SYMBOLS = (
    "gated_delta_chunk_gates",
    "gated_delta_rows",
    "gated_delta_prepare",
    "gated_delta_chunk",
)


def build(KH: int, H: int, W: int, SCALE: int) -> Any:
    """SCALE: float32 bits."""
    from aie import iron
    from aie.iron.controlflow import range_

    count = columns_of(KH)
    kernels: list[Any] = []
    types: dict[str, Any] = {}
    for symbol in SYMBOLS:
        kernel, more = external(FOLDER, symbol, {"W": W})
        kernels.append(kernel)
        types |= more
    slices, rows = W // COLUMNS, PART // W  # of a head's state; of keys, to a part

    def body(parts: Any, before: Any, after: Any, y: Any, *rest: Any) -> None:
        opened, operands, factors, gates, put, prepare, step = rest
        for turn in range_(3):
            gates(parts.acquire(1), opened, turn)
            parts.release(1)
        for head in range_(H // count):
            for first, factor in ((0, bits_of(1.0)), (TOKENS, SCALE)):
                for number in range_(slices):
                    put(parts.acquire(1), operands, W, number * rows + first, factor)
                    parts.release(1)
            prepare(opened, operands, factors, W, head)
            for _ in range_(slices):
                fifos = parts, before, after, y
                step(operands, factors, *(fifo.acquire(1) for fifo in fifos), W)
                for fifo in fifos:
                    fifo.release(1)

    columns = []
    for number in range(count):
        filled = {"parts": types["part"], "before": types["before"]}
        drained = {"after": types["after"], "y": types["y"]}
        column = Column(number, filled, drained, depths={"parts": 2, "y": 2})
        resident = [
            iron.Buffer(types[name], name=f"{name}{number}")
            for name in ("opened", "operands", "factors")
        ]
        columns.append(column.runs(body, *resident, *kernels))
    inputs = TOKENS * (W * (2 * KH + H) + 2 * H) + 16
    sizes = inputs, CORES_MAX * PART, H * W * W, TOKENS * H * W
    return program(_sequence(KH, H, W), [array(size) for size in sizes], columns)


def _sequence(KH: int, H: int, W: int) -> Any:
    from aie import iron
    from aie.helpers.taplib import TensorAccessPattern

    key_at = TOKENS * KH * W
    value_at = 2 * key_at
    a_at = value_at + TOKENS * H * W

    def rows(buffer: Any, start: int, width: int, row: int) -> Any:
        """So many values of each token's row."""
        return TensorAccessPattern(buffer.shape, start, [TOKENS, width], [row, 1])

    def columns(buffer: Any, start: int) -> Any:
        """A head's values, some columns of all tokens after others."""
        sizes, strides = [W // COLUMNS, TOKENS, COLUMNS], [COLUMNS, H * W, 1]
        return TensorAccessPattern(buffer.shape, start, sizes, strides)

    def sequence(buffers: Sequence[Any], ends: Sequence[Sequence[Any]]) -> None:
        inputs, constants, state, y = buffers
        heads = H // len(ends)
        group = iron.TaskGroup()
        for number, (into_parts, *_) in enumerate(ends):
            a, b = (a_at + turn * TOKENS * H + number * heads for turn in range(2))
            own = span(constants.shape[0], number * PART, PART)
            into_parts.fill(constants, tap=own, group=group)
            into_parts.fill(inputs, tap=rows(inputs, a, 16, H), group=group)
            into_parts.fill(inputs, tap=rows(inputs, b, 16, H), wait=True, group=group)
        group.finish()
        for turn in range(heads):
            group = iron.TaskGroup()
            for number, (into_parts, into_state, out_of_state, out_of_y) in enumerate(ends):
                head = number * heads + turn
                key = head // (H // KH) * W
                for start in (key_at + key, key):
                    into_parts.fill(inputs, tap=rows(inputs, start, W, KH * W), group=group)
                values = columns(inputs, value_at + head * W)
                into_parts.fill(inputs, tap=values, group=group)
                slices = span(H * W * W, head * W * W, W * W)
                into_state.fill(state, tap=slices, group=group)
                out_of_state.drain(state, tap=slices, wait=True, group=group)
                out_of_y.drain(y, tap=columns(y, head * W), wait=True, group=group)
            group.finish()

    return sequence

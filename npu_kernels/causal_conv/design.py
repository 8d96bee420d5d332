"""CausalConv of one token or many: up to eight cores, each with channels of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_kernels.columns import RUN, Column, columns_of, program, rows_of, tile_of
from npu_kernels.designs import array, external


def build(T: int, N: int, ROW: int, TAPS: int, SILU: int) -> Any:
    from aie import iron

    count = columns_of(N // RUN)
    tile = tile_of(N // count, 2 * T + 3 * TAPS - 2)
    size = (T - 1) * ROW + N
    shape = {"T": T, "TILE": tile, "TAPS": TAPS}
    kernel, types = external(Path(__file__).parent, "causal_conv", shape)

    def rows(taken: int, start: int) -> Any:
        """A tile of each of `taken` rows of N channels."""
        return rows_of(taken * N, start, taken, tile, N)

    def sequence(buffers: Sequence[Any], ends: Sequence[Sequence[Any]]) -> None:
        x, weight, tail, y = buffers
        for first in range(0, N // count, tile):
            group = iron.TaskGroup()
            for number, (into_rows, into_weight, out_of_y, out_of_tail) in enumerate(ends):
                start = number * (N // count) + first
                into_rows.fill(tail, tap=rows(TAPS - 1, start), group=group)
                into_rows.fill(x, tap=rows_of(size, start, T, tile, ROW), group=group)
                into_weight.fill(weight, tap=rows(TAPS, start), group=group)
                out_of_y.drain(y, tap=rows(T, start), wait=True, group=group)
                out_of_tail.drain(tail, tap=rows(TAPS - 1, start), wait=True, group=group)
            group.finish()

    columns = []
    for number in range(count):
        filled = {name: types[name] for name in ("rows", "weight")}
        drained = {name: types[name] for name in ("y", "next_tail")}
        columns.append(Column(number, filled, drained).calls(kernel, tile, TAPS, T, SILU))
    hosts = [array(size), array(TAPS * N), array((TAPS - 1) * N), array(T * N)]
    return program(sequence, hosts, columns)

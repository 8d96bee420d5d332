"""Gate of one token or many: up to eight cores, each with a part of the values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_kernels.columns import RUN, Column, columns_of, part, program, tile_of
from npu_kernels.designs import array, external


def build(N: int) -> Any:
    from aie import iron

    count = columns_of(N // RUN)
    tile = tile_of(N // count, 2 * 3)
    kernel, types = external(Path(__file__).parent, "gate", {"TILE": tile})

    def sequence(buffers: Sequence[Any], ends: Sequence[Sequence[Any]]) -> None:
        x, gates, y = buffers
        group = iron.TaskGroup()
        for number, (into_x, into_gates, out_of_y) in enumerate(ends):
            own = part(N, count, number)
            into_x.fill(x, tap=own, group=group)
            into_gates.fill(gates, tap=own, group=group)
            out_of_y.drain(y, tap=own, wait=True, group=group)
        group.finish()

    filled = {name: types[name] for name in ("x", "gates")}
    columns = [
        Column(number, filled, {"y": types["y"]}, depth=2).calls(kernel, tile)
        for number in range(count)
    ]
    return program(sequence, [array(N)] * 3, columns)

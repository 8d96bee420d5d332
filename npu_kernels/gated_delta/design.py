"""GatedDelta of one token: up to eight cores, each with some key heads and the value heads that
read them. The state is read once and written once, where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_kernels.columns import Column, columns_of, part, program
from npu_kernels.designs import array, external
from npu_kernels.gated_delta.reference import COLUMNS, LANES

FOLDER = Path(__file__).parent


def build(KH: int, H: int, W: int, SCALE: int) -> Any:
    """SCALE: float32 bits."""
    from aie import iron
    from aie.iron.controlflow import range_

    count = columns_of(KH)
    keys, heads = KH // count, H // count
    lanes = -(-H // LANES) * LANES
    shape = {"KH": KH, "H": H, "W": W, "C": count}
    gates, _ = external(FOLDER, "gated_delta_gates", shape)
    step, types = external(FOLDER, "gated_delta", shape)

    def body(vectors: Any, before: Any, after: Any, y: Any, *rest: Any) -> None:
        opened, gates, step, first = rest
        given, out = vectors.acquire(1), y.acquire(1)
        gates(given, opened, (2 * keys + heads) * W, lanes)
        for key in range_(keys):
            for place in range_(H // KH):
                head = key * (H // KH) + place
                for number in range_(W // COLUMNS):
                    slices = before.acquire(1), after.acquire(1)
                    at = W, keys, key, head, head + first, number
                    step(given, opened, *slices, out, *at, SCALE)
                    before.release(1)
                    after.release(1)
        vectors.release(1)
        y.release(1)

    columns = []
    for number in range(count):
        filled = {name: types[name] for name in ("vectors", "before")}
        drained = {name: types[name] for name in ("after", "y")}
        opened = iron.Buffer(types["gates"], name=f"gates{number}")
        column = Column(number, filled, drained, depth=2)
        columns.append(column.runs(body, opened, gates, step, number * heads))
    sizes = (2 * KH + H) * W + 2 * lanes, 2 * lanes, H * W * W, H * W
    return program(_sequence(KH, H, W, lanes), [array(size) for size in sizes], columns)


def _sequence(KH: int, H: int, W: int, lanes: int) -> Any:
    from aie import iron
    from aie.helpers.taplib import TensorAccessPattern

    def sequence(buffers: Sequence[Any], ends: Sequence[Sequence[Any]]) -> None:
        inputs, constants, state, y = buffers
        count, values_at = len(ends), 2 * KH * W
        keys, heads = KH // count, H // count

        def some(start: int, sizes: list[int], strides: list[int]) -> Any:
            return TensorAccessPattern(inputs.shape, start, sizes, strides)

        vectors, rest = iron.TaskGroup(), iron.TaskGroup()
        for number, (into_vectors, into_state, out_of_state, out_of_y) in enumerate(ends):
            both = some(number * keys * W, [2, keys, W], [KH * W, W, 1])
            values = some(values_at + number * heads * W, [heads * W], [1])
            gates = some(values_at + H * W, [2 * lanes], [1])
            into_vectors.fill(inputs, tap=both, group=vectors)
            into_vectors.fill(inputs, tap=values, group=vectors)
            into_vectors.fill(inputs, tap=gates, wait=True, group=vectors)
            slices = part(H * W * W, count, number)
            into_state.fill(state, tap=slices, group=rest)
            out_of_state.drain(state, tap=slices, wait=True, group=rest)
            out_of_y.drain(y, tap=part(H * W, count, number), wait=True, group=rest)
        vectors.finish()  # a shim's channel takes four transfers at a time
        for into_vectors, *_ in ends:
            into_vectors.fill(constants, group=rest)
        rest.finish()

    return sequence

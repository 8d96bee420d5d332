"""GatedRMSNorm of one token: up to eight cores, each with heads of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_kernels.bf16 import bits_of
from npu_kernels.columns import Column, columns_of, part, program
from npu_kernels.designs import array, external


def build(HEADS: int, W: int, EPSILON: int) -> Any:
    """EPSILON: float32 bits."""
    from aie import iron

    count = columns_of(HEADS)
    shape = {"H": HEADS // count, "W": W}
    kernel, types = external(Path(__file__).parent, "gated_rms_norm", shape)

    def sequence(buffers: Sequence[Any], ends: Sequence[Sequence[Any]]) -> None:
        x, gate, weight, y = buffers
        group = iron.TaskGroup()
        for number, (into_x, into_rest, out_of_y) in enumerate(ends):
            own = part(HEADS * W, count, number)
            into_x.fill(x, tap=own, group=group)
            into_rest.fill(gate, tap=own, group=group)
            into_rest.fill(weight, group=group)
            out_of_y.drain(y, tap=own, wait=True, group=group)
        group.finish()

    values = shape["H"], W, bits_of(1 / W), EPSILON
    columns = [
        Column(number, {"x": types["x"], "rest": types["rest"]}, {"y": types["y"]}).calls(
            kernel, *values
        )
        for number in range(count)
    ]
    whole = array(HEADS * W)
    return program(sequence, [whole, whole, array(W), whole], columns)

"""GatedRMSNorm of one token or many: up to eight cores, each with heads of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_kernels.bf16 import bits_of
from npu_kernels.columns import Column, columns_of, program
from npu_kernels.designs import array, external, span
from npu_kernels.manifest import DATA_BYTES_MAX, STACK_BYTES


def build(HEADS: int, W: int, EPSILON: int) -> Any:
    """EPSILON: float32 bits."""
    from aie import iron

    count = columns_of(HEADS)
    share, most = HEADS // count, (DATA_BYTES_MAX - STACK_BYTES) // (4 * W) - 1
    heads = next(
        share // n for n in range(1, share + 1) if share % n == 0 and share // n * 3 <= most
    )
    shape = {"H": heads, "W": W}
    kernel, types = external(Path(__file__).parent, "gated_rms_norm", shape)

    def sequence(buffers: Sequence[Any], ends: Sequence[Sequence[Any]]) -> None:
        x, gate, weight, y = buffers
        for first in range(0, share, heads):
            group = iron.TaskGroup()
            for number, (into_x, into_rest, out_of_y) in enumerate(ends):
                own = span(HEADS * W, (number * share + first) * W, heads * W)
                into_x.fill(x, tap=own, group=group)
                into_rest.fill(gate, tap=own, group=group)
                into_rest.fill(weight, group=group)
                out_of_y.drain(y, tap=own, wait=True, group=group)
            group.finish()

    values = heads, W, bits_of(1 / W), EPSILON
    columns = [
        Column(number, {"x": types["x"], "rest": types["rest"]}, {"y": types["y"]}).calls(
            kernel, *values
        )
        for number in range(count)
    ]
    whole = array(HEADS * W)
    return program(sequence, [whole, whole, array(W), whole], columns)

"""RMSNorm on one core: of each of T tokens HEADS parts of N values, so HeadNorm, too. EPSILON:
float32 bits.
"""

from pathlib import Path
from typing import Any

from npu_kernels.bf16 import bits_of
from npu_kernels.columns import rows_of
from npu_kernels.designs import array, external, program, worker
from npu_kernels.manifest import DATA_BYTES_MAX, STACK_BYTES

LANES = 16  # values a kernel takes at a time


def build(N: int, HEADS: int, T: int, ROW: int, EPSILON: int) -> Any:
    from aie import iron
    from aie.iron.controlflow import range_

    kernel, types = external(Path(__file__).parent, "rms_norm", {"N": N})
    parts, width = T * HEADS, HEADS * N
    size = (T - 1) * ROW + width
    deep = 2 if parts > 1 and STACK_BYTES + 5 * 4 * N <= DATA_BYTES_MAX else 1
    x, y = (iron.ObjectFifo(types[name], name=name, depth=deep) for name in "xy")
    weight = iron.ObjectFifo(types["weight"], name="weight", depth=1)

    def norm(x: Any, weight: Any, y: Any, kernel: Any) -> None:
        factors = weight.acquire(1)
        for _ in range_(parts):
            kernel(x.acquire(1), factors, y.acquire(1), N, bits_of(1 / N), EPSILON)
            x.release(1)
            y.release(1)
        weight.release(1)

    def sequence(values: Any, factors: Any, normed: Any, x: Any, weight: Any, y: Any) -> None:
        group = iron.TaskGroup()
        x.fill(values, tap=rows_of(size, 0, T, width, ROW, LANES), group=group)
        weight.fill(factors, group=group)
        y.drain(normed, wait=True, group=group)
        group.finish()

    ends = [x.prod(), weight.prod(), y.cons()]
    core = worker(norm, [x.cons(), weight.cons(), y.prod(), kernel])
    hosts = [array(size), types["weight"], array(T * width)]
    return program(sequence, [*hosts, *ends], [core])

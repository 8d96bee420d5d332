"""AddRMSNorm of N values on one core. EPSILON: float32 bits."""

from pathlib import Path
from typing import Any

from npu_kernels.bf16 import bits_of
from npu_kernels.designs import array, external, program, worker

NAMES = ("x", "rest", "y", "sum")


def build(N: int, EPSILON: int) -> Any:
    from aie import iron

    kernel, types = external(Path(__file__).parent, "add_rms_norm", {"N": N})
    x, rest, y, total = (iron.ObjectFifo(types[name], name=name, depth=1) for name in NAMES)

    def norm(*given: Any) -> None:
        *fifos, kernel = given
        kernel(*(fifo.acquire(1) for fifo in fifos), N, bits_of(1 / N), EPSILON)
        for fifo in fifos:
            fifo.release(1)

    def sequence(a: Any, residual: Any, weight: Any, b: Any, c: Any, *fifos: Any) -> None:
        x, rest, y, total = fifos
        group = iron.TaskGroup()
        x.fill(a, group=group)
        rest.fill(residual, group=group)
        rest.fill(weight, group=group)
        y.drain(b, wait=True, group=group)
        total.drain(c, wait=True, group=group)
        group.finish()

    ends = [x.prod(), rest.prod(), y.cons(), total.cons()]
    core = worker(norm, [x.cons(), rest.cons(), y.prod(), total.prod(), kernel])
    return program(sequence, [array(N)] * 5 + ends, [core])

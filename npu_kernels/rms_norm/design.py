"""RMSNorm on one core, of HEADS parts of N values each: HeadNorm, too. EPSILON: float32 bits."""

from pathlib import Path
from typing import Any

from npu_kernels.bf16 import bits_of
from npu_kernels.designs import array, external, program, worker


def build(N: int, HEADS: int, EPSILON: int) -> Any:
    from aie import iron
    from aie.iron.controlflow import range_

    kernel, types = external(Path(__file__).parent, "rms_norm", {"N": N})
    x, y = (iron.ObjectFifo(types[name], name=name, depth=2 if HEADS > 1 else 1) for name in "xy")
    weight = iron.ObjectFifo(types["weight"], name="weight", depth=1)

    def norm(x: Any, weight: Any, y: Any, kernel: Any) -> None:
        factors = weight.acquire(1)
        for _ in range_(HEADS):
            kernel(x.acquire(1), factors, y.acquire(1), N, bits_of(1 / N), EPSILON)
            x.release(1)
            y.release(1)
        weight.release(1)

    def sequence(values: Any, factors: Any, normed: Any, x: Any, weight: Any, y: Any) -> None:
        group = iron.TaskGroup()
        x.fill(values, group=group)
        weight.fill(factors, group=group)
        y.drain(normed, wait=True, group=group)
        group.finish()

    ends = [x.prod(), weight.prod(), y.cons()]
    core = worker(norm, [x.cons(), weight.cons(), y.prod(), kernel])
    whole = array(HEADS * N)
    return program(sequence, [whole, types["weight"], whole, *ends], [core])

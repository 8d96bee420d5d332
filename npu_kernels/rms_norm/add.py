"""AddRMSNorm of N values on one core. EPSILON: float32 bits.

The core holds N values three times: x, to which the residual is added where it lies; the residual,
then the weight; the sum, then its norm.
"""

from pathlib import Path
from typing import Any

from npu_kernels.bf16 import bits_of
from npu_kernels.designs import array, external, program, worker

FOLDER = Path(__file__).parent


def build(N: int, EPSILON: int) -> Any:
    from aie import iron

    add, types = external(FOLDER, "add_residual", {"N": N})
    normalise, _ = external(FOLDER, "rms_norm", {"N": N})
    fifos = [iron.ObjectFifo(types["x"], name=name, depth=1) for name in ("x", "rest", "out")]

    def norm(x: Any, rest: Any, out: Any, add: Any, normalise: Any) -> None:
        total = x.acquire(1)
        add(total, rest.acquire(1), out.acquire(1), N)
        rest.release(1)
        out.release(1)
        normalise(total, rest.acquire(1), out.acquire(1), N, bits_of(1 / N), EPSILON)
        for fifo in (x, rest, out):
            fifo.release(1)

    def sequence(a: Any, residual: Any, weight: Any, b: Any, c: Any, *fifos: Any) -> None:
        x, rest, out = fifos
        group = iron.TaskGroup()
        x.fill(a, group=group)
        rest.fill(residual, group=group)
        rest.fill(weight, group=group)
        out.drain(c, wait=True, group=group)
        out.drain(b, wait=True, group=group)
        group.finish()

    x, rest, out = fifos
    core = worker(norm, [x.cons(), rest.cons(), out.prod(), add, normalise])
    return program(sequence, [array(N)] * 5 + [x.prod(), rest.prod(), out.cons()], [core])

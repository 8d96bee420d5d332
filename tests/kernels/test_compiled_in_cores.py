"""Compiled kernels run in simulated cores, on what transfers left there."""

from typing import Any

import numpy as np
import pytest

from npu_kernels.aie_host import KernelFault, compile_kernel
from npu_kernels.bf16 import bits_of
from npu_kernels.iron_sim import simulate
from npu_kernels.iron_sim.simulate import Counters
from npu_kernels.rms_norm import reference
from tests.kernels.designs import design, program, tensor
from tests.kernels.host import FOLDER, Array, Rig, needs_compiler, spread

pytestmark = needs_compiler
N = 64


def normed(iron: Any, unwritten: bool) -> Any:
    """add_rms_norm in a core: an element of `rest` takes two transfers, residual and weight. With
    `unwritten` the kernel reads where it should write."""
    half, both = tensor(N, dtype=np.float32), tensor(2 * N, dtype=np.float32)
    x = iron.ObjectFifo(half, name="x", depth=1)
    rest = iron.ObjectFifo(both, name="rest", depth=1)
    y = iron.ObjectFifo(half, name="y", depth=1)
    total = iron.ObjectFifo(half, name="total", depth=1)
    kernel = iron.ExternalFunction(
        "add_rms_norm",
        source_file=str(FOLDER / "rms_norm" / "add.cc"),
        arg_types=[half, both, half, half, np.int32, np.int32, np.int32],
    )

    def body(x: Any, rest: Any, y: Any, total: Any, kernel: Any) -> None:
        a, more, b, c = (fifo.acquire(1) for fifo in (x, rest, y, total))
        kernel(b if unwritten else a, more, b, c, N, bits_of(1 / N), bits_of(1e-6))
        for fifo in (x, rest, y, total):
            fifo.release(1)

    def sequence(a: Any, b: Any, c: Any, d: Any, e: Any, *fifos: Any) -> None:
        x, rest, y, total = fifos
        group = iron.TaskGroup()
        x.fill(a, group=group)
        rest.fill(b, group=group)
        rest.fill(c, group=group)
        y.drain(d, wait=True, group=group)
        total.drain(e, wait=True, group=group)
        group.finish()

    worker = iron.Worker(body, [x.cons(), rest.cons(), y.prod(), total.prod(), kernel])
    ends = [x.prod(), rest.prod(), y.cons(), total.cons()]
    return program(iron, sequence, [half] * 5 + ends, worker)


def run(arrays: list[Array], unwritten: bool) -> Counters:
    kernels = {"add_rms_norm": compile_kernel(FOLDER / "rms_norm" / "add.cc")}
    return simulate(design(lambda iron: normed(iron, unwritten)), arrays, kernels)


def arrays() -> list[Array]:
    random = np.random.default_rng(1)
    return [*(spread(random, N) for _ in range(3)), *(np.zeros(N, np.float32) for _ in range(2))]


def test_an_element_is_filled_by_two_transfers() -> None:
    x, residual, weight, y, total = given = arrays()
    counters = run(given, unwritten=False)
    np.testing.assert_array_equal(total, x + residual)
    Rig("rms_norm").check(y, reference.rms_norm(total.astype(np.float64), weight, 1e-6))
    assert counters.kernel_calls["add_rms_norm"] == 1
    assert (counters.bytes_read, counters.bytes_written) == (12 * N, 8 * N)


def test_what_no_transfer_wrote_is_not_read() -> None:
    with pytest.raises(KernelFault, match="nobody wrote"):
        run(arrays(), unwritten=True)

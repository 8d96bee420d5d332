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
N = 128
SOURCE = FOLDER / "rms_norm" / "kernel.cc"


def normed(iron: Any, unwritten: bool) -> Any:
    """rms_norm in a core: an element of `x` takes two transfers, one half each. With `unwritten`
    the kernel reads where it should write."""
    half, whole = tensor(N // 2, dtype=np.float32), tensor(N, dtype=np.float32)
    fifos = [iron.ObjectFifo(whole, name=name, depth=1) for name in ("x", "weight", "y")]
    kernel = iron.ExternalFunction(
        "rms_norm",
        source_file=str(SOURCE),
        arg_types=[whole, whole, whole, np.int32, np.int32, np.int32],
    )

    def body(*given: Any) -> None:
        *fifos, kernel = given
        x, weight, y = (fifo.acquire(1) for fifo in fifos)
        kernel(y if unwritten else x, weight, y, N, bits_of(1 / N), bits_of(1e-6))
        for fifo in fifos:
            fifo.release(1)

    def sequence(a: Any, b: Any, c: Any, d: Any, *fifos: Any) -> None:
        x, weight, y = fifos
        group = iron.TaskGroup()
        x.fill(a, group=group)
        x.fill(b, group=group)
        weight.fill(c, group=group)
        y.drain(d, wait=True, group=group)
        group.finish()

    x, weight, y = fifos
    worker = iron.Worker(body, [x.cons(), weight.cons(), y.prod(), kernel])
    ends = [x.prod(), weight.prod(), y.cons()]
    return program(iron, sequence, [half, half, whole, whole, *ends], worker)


def run(arrays: list[Array], unwritten: bool) -> Counters:
    kernels = {"rms_norm": compile_kernel(SOURCE)}
    return simulate(design(lambda iron: normed(iron, unwritten)), arrays, kernels)


def arrays() -> list[Array]:
    random = np.random.default_rng(1)
    return [*(spread(random, size) for size in (N // 2, N // 2, N)), np.zeros(N, np.float32)]


def test_an_element_is_filled_by_two_transfers() -> None:
    one, other, weight, y = given = arrays()
    counters = run(given, unwritten=False)
    x = np.concatenate([one, other]).astype(np.float64)
    Rig("rms_norm").check(y, reference.rms_norm(x, weight, 1e-6))
    assert counters.kernel_calls["rms_norm"] == 1
    assert (counters.bytes_read, counters.bytes_written) == (8 * N, 4 * N)


def test_what_no_transfer_wrote_is_not_read() -> None:
    with pytest.raises(KernelFault, match="nobody wrote"):
        run(arrays(), unwritten=True)

"""Three public examples of mlir-aie run unmodified, and give numpy's results."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npu_kernels.iron_sim import check, installed, simulate
from npu_kernels.iron_sim.record import Record

VENDORED = Path(__file__).parent / "vendored"


def run(monkeypatch: pytest.MonkeyPatch, name: str, *options: str) -> Record:
    """The program that the script resolves, as its own command line would."""
    monkeypatch.setattr("sys.argv", [name, *options])
    with installed() as resolved:
        runpy.run_path(str(VENDORED / name), run_name="__main__")
    (record,) = resolved
    return record


def test_passthrough(monkeypatch: pytest.MonkeyPatch) -> None:
    record = run(monkeypatch, "passthrough_kernel.py", "-d", "npu2", "-i1s", "4096", "-os", "4096")
    check(record)
    given = np.random.default_rng(1).integers(0, 255, 4096).astype(np.uint8)
    got = np.zeros_like(given)

    def pass_through(source: Any, target: Any, size: int) -> None:
        target[:size] = source[:size]

    counters = simulate(record, [given, got, got.copy()], {"passThroughLine": pass_through})
    np.testing.assert_array_equal(got, given)
    assert (counters.bytes_read, counters.bytes_written, counters.transfers) == (4096, 4096, 2)


def test_vector_scalar_mul(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("-d", "npu2", "-i1s", "4096", "-i2s", "4", "-os", "4096")
    record = run(monkeypatch, "vector_scalar_mul.py", *options)
    check(record)
    given = np.random.default_rng(2).integers(-100, 100, 2048).astype(np.int16)
    got = np.zeros_like(given)

    def scale(source: Any, target: Any, factor: Any, size: int) -> None:
        target[:] = source * np.int16(factor[0])

    buffers = [given, np.array([3], np.int32), got]
    counters = simulate(record, buffers, {"vector_scalar_mul_int16_vector": scale})
    np.testing.assert_array_equal(got, 3 * given)
    assert counters.kernel_calls == {"vector_scalar_mul_int16_vector": 4}


@pytest.mark.parametrize("column_major", [0, 1])
def test_single_core_matmul(monkeypatch: pytest.MonkeyPatch, column_major: int) -> None:
    """256 x 128 x 64, in tiles of 64 x 64 x 32."""
    shape = ("-M", "256", "-K", "128", "-N", "64", "--b-col-maj", str(column_major))
    record = run(monkeypatch, "single_core_iron.py", "--dev", "npu2", *shape)
    check(record)
    r, s, t = 4, 4, 8  # the core's product takes tiles of r by s and s by t, one behind the other

    def zero(c: Any) -> None:
        c[...] = 0

    def matmul(a: Any, b: Any, c: Any) -> None:
        (m, k), n = a.shape, c.shape[1]
        left = a.reshape(m // r, k // s, r, s).transpose(0, 2, 1, 3).reshape(m, k)
        if column_major:
            right = b.reshape(n // t, k // s, t, s).transpose(1, 3, 0, 2).reshape(k, n)
        else:
            right = b.reshape(k // s, n // t, s, t).transpose(0, 2, 1, 3).reshape(k, n)
        product = left.astype(np.int32) @ right.astype(np.int32)
        c.reshape(m // r, n // t, r, t)[...] += product.reshape(m // r, r, n // t, t).transpose(
            0, 2, 1, 3
        )

    random = np.random.default_rng(3)
    a = random.integers(-50, 50, (256, 128)).astype(np.int16)
    b = random.integers(-50, 50, (128, 64)).astype(np.int16)
    c = np.zeros((256, 64), np.int32)
    stored = np.ascontiguousarray(b.T) if column_major else b
    kernels = {"zero_i32": zero, "matmul_i16_i32": matmul}
    counters = simulate(record, [a, stored, c], kernels)
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32))
    assert counters.kernel_calls == {"zero_i32": 8, "matmul_i16_i32": 16}
    # A is read once for each tile column of C, B once for each tile row.
    assert counters.bytes_read == 2 * a.nbytes + 4 * b.nbytes

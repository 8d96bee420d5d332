"""rms_norm: the compiled kernels give the reference's norm and residual sum."""

from pathlib import Path

import numpy as np
import pytest

from npu_kernels.bf16 import bits_of
from npu_kernels.binding import Binding, Node, Tensor
from npu_kernels.rms_norm import reference
from npu_kernels.rms_norm.binding import bind
from tests.kernels.host import (
    FOLDER,
    SANITIZERS,
    Array,
    Rig,
    dispatch,
    held,
    needs_compiler,
    record,
    spread,
    unwritten,
)

pytestmark = needs_compiler
EPSILON = 1e-6


def run(rig: Rig, x: Array, weight: Array, residual: Array | None = None) -> tuple[Array, Array]:
    y, total, n = unwritten(x.shape), unwritten(x.shape), len(x)
    if residual is not None:
        x = held(x)
        rig("add_residual", x, residual, total, n)
    rig("rms_norm", x, weight, y, n, bits_of(1 / n), bits_of(EPSILON))
    return y, total


@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize("size", [1e-12, 1e-3, 1.0, 1e5, 1e12])
def test_it_is_the_norm_at_any_size(sanitize: bool, size: float) -> None:
    random, rig = np.random.default_rng(1), Rig("rms_norm", sanitize)
    x = held((random.standard_normal(80) * size).astype(np.float32))
    residual = held((random.standard_normal(80) * size).astype(np.float32))
    weight = spread(random, 80)
    y, _ = run(rig, x, weight)
    rig.check(y, reference.rms_norm(x.astype(np.float64), weight, EPSILON))
    y, total = run(rig, x, weight, residual)
    np.testing.assert_array_equal(total, x + residual)
    rig.check(y, reference.rms_norm(total.astype(np.float64), weight, EPSILON))


def test_outliers_and_zeros() -> None:
    random, rig = np.random.default_rng(2), Rig("rms_norm")
    x, weight = spread(random, 96), held(np.ones(96, np.float32))
    x[7] = -3000
    rig.check(run(rig, x, weight)[0], reference.rms_norm(x.astype(np.float64), weight, EPSILON))
    nothing = run(rig, held(np.zeros(96, np.float32)), weight)[0]
    np.testing.assert_array_equal(nothing, 0)


@pytest.mark.slow
def test_another_rounding_mode_is_found_out(tmp_path: Path) -> None:
    """Tolerances are so tight that a kernel which leaves the mode as it is fails."""
    for source in (FOLDER / "rms_norm").glob("[!_]*.*"):
        text = source.read_text()
        (tmp_path / "rms_norm").mkdir(exist_ok=True)
        (tmp_path / "rms_norm" / source.name).write_text(text.replace("conv_even", "floor"))
    random, rig = np.random.default_rng(4), Rig("rms_norm", folder=tmp_path)
    x, weight = spread(random, 576), held(np.ones(576, np.float32))
    y, wanted = run(rig, x, weight)[0], reference.rms_norm(x.astype(np.float64), weight, EPSILON)
    with pytest.raises(AssertionError):
        rig.check(y, wanted)


def designed(n: int, heads: int) -> None:
    """Both designs, at a shape."""
    random, rig = np.random.default_rng(5), Rig("rms_norm")
    x, residual, weight = spread(random, heads, n), spread(random, n), spread(random, n)
    constants = {"N": n, "EPSILON": bits_of(EPSILON)}
    y, total = unwritten((heads, n)), unwritten(n)
    counters = dispatch(
        rig, "rms_norm", {**constants, "HEADS": heads, "T": 1, "ROW": n * heads}, [x, weight, y]
    )
    rig.check(y, reference.rms_norm(x.astype(np.float64), weight, EPSILON))
    assert counters.bytes_read == x.nbytes + weight.nbytes
    buffers = [x[0], residual, weight, y[0], total]
    dispatch(rig, "add_rms_norm", constants, buffers)
    np.testing.assert_array_equal(total, x[0] + residual)
    rig.check(y[0], reference.rms_norm(total.astype(np.float64), weight, EPSILON))


@pytest.mark.parametrize("heads", [1, 3])
def test_designs_run(heads: int) -> None:
    designed(64, heads)


@pytest.mark.parametrize("model", Rig("rms_norm").manifest.shapes)
def test_designs_at_real_shapes(model: str) -> None:
    designed(Rig("rms_norm").manifest.shapes[model]["N"], 1)


@pytest.mark.parametrize("function", ["RMSNorm", "AddRMSNorm"])
def test_what_no_core_holds_is_not_bound(function: str) -> None:
    """And what is bound at the most has a core that holds it."""

    def bound(n: int) -> tuple[Binding, ...]:
        inputs, weight = {"x": Tensor((1, 1, n))}, np.ones(n, np.float32)
        return bind(Node(function, {"epsilon": EPSILON}, inputs, {}, {"weight": weight}))

    (most,) = bound(4768)
    record(Rig("rms_norm"), most.design, most.parameters)
    assert bound(4784) == ()

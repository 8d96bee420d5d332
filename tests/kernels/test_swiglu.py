"""swiglu: the compiled kernel gives silu(gate) * up."""

import numpy as np
import pytest

from npu_kernels.swiglu import reference
from tests.kernels.host import (
    SANITIZERS,
    Array,
    Rig,
    dispatch,
    held,
    needs_compiler,
    spread,
    unwritten,
)

pytestmark = needs_compiler


def run(rig: Rig, gate: Array, up: Array, tile: int) -> Array:
    parts = []
    for start in range(0, len(gate), tile):
        y, place = unwritten(tile), slice(start, start + tile)
        rig("swiglu", held(gate[place]), held(up[place]), y, tile)
        parts.append(y)
    return np.concatenate(parts)


@pytest.mark.parametrize("sanitize", SANITIZERS)
def test_each_value_is_right_on_its_own(sanitize: bool) -> None:
    """Not only next to the largest: silu spans from e^-80 to 1e6."""
    rig = Rig("swiglu", sanitize)
    gate = held(np.concatenate([np.linspace(-79, 79, 158), [-1e6, 1e6]]).astype(np.float32))
    y = run(rig, gate, held(np.ones(160, np.float32)), 160)
    exact = reference.swiglu(gate.astype(np.float64), np.ones(160))
    np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-32)


def test_mixed_sizes() -> None:
    random, rig = np.random.default_rng(1), Rig("swiglu")
    gate, up = spread(random, 512), spread(random, 512)
    rig.check(run(rig, gate, up, 256), reference.swiglu(gate.astype(np.float64), up))


def designed(n: int) -> None:
    random, rig = np.random.default_rng(2), Rig("swiglu")
    gate, up, y = spread(random, n), spread(random, n), unwritten(n)
    dispatch(rig, "swiglu", {"N": n, "T": 1, "ROW": n}, [gate, up, y])
    rig.check(y, reference.swiglu(gate.astype(np.float64), up))


@pytest.mark.parametrize("n", [64, 768])
def test_designs_run(n: int) -> None:
    designed(n)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2:135m", "llama3.2:1b", "qwen3.5:4b"])
def test_designs_at_real_shapes(model: str) -> None:
    designed(Rig("swiglu").manifest.shapes[model]["N"])

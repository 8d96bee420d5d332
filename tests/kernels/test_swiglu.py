"""swiglu: the compiled kernel gives silu(gate) * up."""

import numpy as np
import pytest

from npu_kernels.swiglu import reference
from tests.kernels.host import SANITIZERS, Array, Rig, held, needs_compiler, spread, unwritten

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


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2:135m", "llama3.2:1b", "qwen3.5:4b"])
def test_real_shapes(model: str) -> None:
    random, rig = np.random.default_rng(2), Rig("swiglu")
    shape = rig.manifest.shapes[model]
    gate, up = (spread(random, shape["N"]) for _ in range(2))
    rig.check(run(rig, gate, up, shape["TILE"]), reference.swiglu(gate.astype(np.float64), up))

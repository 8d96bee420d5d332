"""causal_conv: token by token it is the convolution over all, and only the last ones stay."""

import numpy as np
import pytest

from npu_kernels.causal_conv import reference
from tests.kernels.host import SANITIZERS, Array, Rig, held, needs_compiler, spread, unwritten

pytestmark = needs_compiler


def run(rig: Rig, x: Array, weight: Array, tail: Array, silu: bool = True) -> tuple[Array, Array]:
    y, following = unwritten(x.shape), unwritten(tail.shape)
    past = held(np.concatenate([tail, weight]))
    rig("causal_conv", x, past, y, following, len(x), len(weight), int(silu))
    return y, following


@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize("taps", [2, 4])
def test_a_token_after_another(sanitize: bool, taps: int) -> None:
    random, rig, n = np.random.default_rng(taps), Rig("causal_conv", sanitize), 48
    weight, tail = spread(random, taps, n), held(np.zeros((taps - 1, n), np.float32))
    for silu in (True, True, False, False, True, False):
        x = spread(random, n)
        y, wanted = reference.causal_conv(x.astype(np.float64), weight, tail, silu)
        got, tail = run(rig, x, weight, tail, silu)
        rig.check(got, y)
        np.testing.assert_array_equal(tail, wanted)


@pytest.mark.slow
def test_real_shapes() -> None:
    random, rig = np.random.default_rng(1), Rig("causal_conv")
    shape = rig.manifest.shapes["qwen3.5:4b"]
    x, weight, tail = spread(random, 8192), spread(random, 4, 8192), spread(random, 3, 8192)
    parts = [
        run(rig, held(x[at]), held(weight[:, at]), held(tail[:, at]))[0]
        for at in (slice(i, i + shape["TILE"]) for i in range(0, shape["N"], shape["TILE"]))
    ]
    wanted = reference.causal_conv(x.astype(np.float64), weight, tail)[0]
    rig.check(np.concatenate(parts), wanted)

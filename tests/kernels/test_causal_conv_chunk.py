"""causal_conv_chunk: some tokens at once are what they are one after another."""

import numpy as np
import pytest

from npu_kernels.causal_conv_chunk.reference import causal_conv_chunk
from tests.kernels.host import SANITIZERS, Rig, dispatch, held, needs_compiler, spread, unwritten

pytestmark = needs_compiler


@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize(("tokens", "taps"), [(2, 4), (5, 2)])
def test_tokens_after_others(sanitize: bool, tokens: int, taps: int) -> None:
    """Also fewer than the tail has."""
    random, rig, n = np.random.default_rng(taps), Rig("causal_conv_chunk", sanitize), 48
    weight, tail = spread(random, taps, n), spread(random, taps - 1, n)
    for silu in (1, 0):
        x, y, after = spread(random, tokens, n), unwritten((tokens, n)), unwritten((taps - 1, n))
        rows = held(np.concatenate([tail, x]).astype(np.float32))
        rig("causal_conv_chunk", rows, weight, y, after, n, taps, tokens, silu)
        exact, tail = causal_conv_chunk(x.astype(np.float64), weight, tail, bool(silu))
        rig.check(y, exact)
        np.testing.assert_array_equal(after, tail)


@pytest.mark.parametrize(
    ("tokens", "channels"), [(8, 384), pytest.param(32, 8192, marks=pytest.mark.slow)]
)
def test_the_design(tokens: int, channels: int) -> None:
    random, rig, taps = np.random.default_rng(tokens), Rig("causal_conv_chunk"), 4
    weight, tail = spread(random, taps, channels), spread(random, taps - 1, channels)
    parameters = {"T": tokens, "N": channels, "TAPS": taps, "SILU": 1}
    for _ in range(2):
        x, y, before = spread(random, tokens, channels), unwritten((tokens, channels)), tail.copy()
        dispatch(rig, "causal_conv_chunk", parameters, [x, weight, tail, y])
        exact, following = causal_conv_chunk(x.astype(np.float64), weight, before)
        rig.check(y, exact)
        np.testing.assert_array_equal(tail, following)

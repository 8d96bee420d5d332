"""gated_rms_norm: each head's norm, times silu of the gate."""

import numpy as np
import pytest

from npu_kernels.bf16 import bits_of
from npu_kernels.gated_rms_norm import reference
from tests.kernels.host import SANITIZERS, Rig, dispatch, held, needs_compiler, spread, unwritten

pytestmark = needs_compiler
EPSILON = 1e-6


@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize(
    ("heads", "width"), [(3, 32), pytest.param(4, 128, marks=pytest.mark.slow)]
)
def test_it_is_the_gated_norm(sanitize: bool, heads: int, width: int) -> None:
    random, rig = np.random.default_rng(heads), Rig("gated_rms_norm", sanitize)
    x, gate, weight = (
        spread(random, heads, width),
        spread(random, heads, width),
        spread(random, width),
    )
    x[1] *= 1e4  # heads are normed each on its own
    y = unwritten(x.shape)
    rest = held(np.concatenate([gate.ravel(), weight]))
    rig("gated_rms_norm", x, rest, y, heads, width, bits_of(1 / width), bits_of(EPSILON))
    wanted = reference.gated_rms_norm(
        x.astype(np.float64), gate.astype(np.float64), weight, EPSILON
    )
    rig.check(y, wanted)


@pytest.mark.parametrize(
    ("heads", "width"),
    [
        (6, 64),
        (7 * 74, 64),  # too many for a core to take at once
        pytest.param(32, 128, marks=pytest.mark.slow),
        pytest.param(32 * 32, 128, marks=pytest.mark.slow),
    ],
)
def test_the_design(heads: int, width: int) -> None:
    random, rig = np.random.default_rng(heads), Rig("gated_rms_norm")
    x, gate, weight = (spread(random, n) for n in (heads * width, heads * width, width))
    y = unwritten((heads, width))
    parameters = {"HEADS": heads, "W": width, "EPSILON": bits_of(EPSILON)}
    dispatch(rig, "gated_rms_norm", parameters, [x, gate, weight, y])
    both = (each.astype(np.float64).reshape(heads, width) for each in (x, gate))
    rig.check(y, reference.gated_rms_norm(*both, weight, EPSILON))

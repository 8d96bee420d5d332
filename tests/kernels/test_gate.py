"""gate: the compiled kernel and its design give x * sigmoid(gate)."""

import numpy as np
import pytest

from npu_kernels.gate import reference
from tests.kernels.host import SANITIZERS, Rig, dispatch, held, needs_compiler, spread, unwritten

pytestmark = needs_compiler


@pytest.mark.parametrize("sanitize", SANITIZERS)
def test_each_value_is_right_on_its_own(sanitize: bool) -> None:
    rig, y = Rig("gate", sanitize), unwritten(160)
    gates = held(np.concatenate([np.linspace(-79, 79, 158), [-1e6, 1e6]]).astype(np.float32))
    x = held(np.full(160, 3, np.float32))
    rig("gate", x, gates, y, 160)
    exact = reference.gate(x.astype(np.float64), gates.astype(np.float64))
    np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-32)


@pytest.mark.parametrize(
    "n",
    [
        64,
        320,
        8192 * 5,  # a core takes its values in parts
        pytest.param(4096, marks=pytest.mark.slow),
        pytest.param(32 * 4096, marks=pytest.mark.slow),
    ],
)
def test_the_design(n: int) -> None:
    random, rig = np.random.default_rng(n), Rig("gate")
    x, gates, y = spread(random, n), spread(random, n), unwritten(n)
    counters = dispatch(rig, "gate", {"N": n, "T": 1, "ROW": n}, [x, gates, y])
    rig.check(y, reference.gate(x.astype(np.float64), gates.astype(np.float64)))
    assert (counters.bytes_read, counters.bytes_written) == (8 * n, 4 * n)

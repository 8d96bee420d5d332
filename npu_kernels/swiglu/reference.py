"""SwiGLU. The kernel rounds nothing to bfloat16: high and low parts throughout."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def swiglu(gate: Array, up: Array) -> Array:
    """silu(gate) * up, in gate's own type."""
    one = gate.dtype.type(1)
    return np.asarray(gate / (one + np.exp(np.minimum(-gate, 80))) * up)

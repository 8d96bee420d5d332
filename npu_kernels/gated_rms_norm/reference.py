"""GatedRMSNorm. The kernel rounds nothing to bfloat16: high and low parts throughout."""

from typing import Any

import numpy as np

from npu_kernels.rms_norm.reference import rms_norm

Array = np.ndarray[Any, np.dtype[Any]]


def gated_rms_norm(x: Array, gate: Array, weight: Array, epsilon: float) -> Array:
    """x and gate [heads, width]: each head's norm by weight [width], times silu(gate)."""
    silu = gate / (1 + np.exp(np.minimum(-gate, 80)))
    return np.asarray(rms_norm(x, weight, epsilon) * silu)

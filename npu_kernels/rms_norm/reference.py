"""RMSNorm and AddRMSNorm. The kernels round nothing to bfloat16: high and low parts throughout."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis, in x's own type."""
    mean = np.mean(x * x, axis=-1, keepdims=True, dtype=x.dtype)
    return np.asarray(x / np.sqrt(mean + x.dtype.type(epsilon)) * weight)


def add_rms_norm(x: Array, residual: Array, weight: Array, epsilon: float) -> tuple[Array, Array]:
    """The norm of x + residual, and that sum."""
    total = x + residual
    return rms_norm(total, weight, epsilon), total

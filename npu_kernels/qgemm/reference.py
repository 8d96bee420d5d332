"""QLinear in 4 bits of many tokens. The kernels round activations to bfloat16."""

from typing import Any

import numpy as np

from npu_kernels.qlinear.reference import CENTRE, dense, shape_of, unpack

Array = np.ndarray[Any, np.dtype[Any]]


def qgemm(x: Array, chunks: Array) -> Array:
    """x [tokens, K] by chunks [fours, K / 256, 4, 5120]: float64 [tokens, 128 * fours]."""
    weights = dense(*unpack(chunks, *shape_of(chunks)), CENTRE)
    return np.asarray(x.astype(np.float64) @ weights.T)


def tiled(rows: Array) -> Array:
    """[tokens, K] as tiles [tokens / 8, K / 8, 8, 8]: as products take them."""
    tokens, k = rows.shape
    return np.ascontiguousarray(rows.reshape(tokens // 8, 8, k // 8, 8).swapaxes(1, 2))

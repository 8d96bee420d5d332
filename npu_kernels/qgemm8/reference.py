"""QLinear in 8 bits of many tokens: as qgemm, whose rows.cc makes its tiles."""

import numpy as np

from npu_kernels.qlinear.reference import Array, dense, shape_of
from npu_kernels.qlinear8.reference import CENTRE, unpack, unpack_by16


def qgemm8(x: Array, chunks: Array) -> Array:
    """x [tokens, K] by chunks [fours, K / 256, 4, 9216]: float64 [tokens, 128 * fours]."""
    weights = dense(*unpack(chunks, *shape_of(chunks)), CENTRE)
    return np.asarray(x.astype(np.float64) @ weights.T)


def qgemm8_by16(x: Array, chunks: Array) -> Array:
    """The same, in blocks of 16."""
    weights = dense(*unpack_by16(chunks, *shape_of(chunks)), CENTRE)
    return np.asarray(x.astype(np.float64) @ weights.T)

"""QLinear in 8 bits of many tokens: as qgemm, whose rows.cc makes its tiles."""

import numpy as np

from npu_kernels.qlinear.reference import COLUMNS, CORES, ROWS, Array, dense
from npu_kernels.qlinear8.reference import CENTRE, unpack


def qgemm8(x: Array, chunks: Array) -> Array:
    """x [tokens, K] by chunks [fours, K / 256, 4, 9216]: float64 [tokens, 128 * fours]."""
    shape = chunks.shape[0] * CORES * ROWS, chunks.shape[1] * COLUMNS
    return np.asarray(x.astype(np.float64) @ dense(*unpack(chunks, *shape), CENTRE).T)

"""QLinear in 8 bits of many tokens: as qgemm, whose rows.cc makes its tiles."""

import numpy as np

from npu_kernels.qlinear.reference import COLUMNS, ROWS, Array, dense
from npu_kernels.qlinear8.reference import CENTRE, unpack


def qgemm8(x: Array, chunks: Array) -> Array:
    """x [tokens, K] by chunks [groups, K / 256, 9216]: float64 [tokens, 32 * groups]."""
    shape = chunks.shape[0] * ROWS, chunks.shape[1] * COLUMNS
    return np.asarray(x.astype(np.float64) @ dense(*unpack(chunks, *shape), CENTRE).T)

"""CausalConv of some tokens. The kernel rounds nothing: high and low parts throughout."""

import numpy as np

from npu_kernels.causal_conv.reference import Array, causal_conv


def causal_conv_chunk(
    x: Array, weight: Array, tail: Array, silu: bool = True
) -> tuple[Array, Array]:
    """x [tokens, C], weight [taps, C], tail [taps - 1, C], oldest first: y [tokens, C] and the next
    tail."""
    y = np.empty(x.shape, np.result_type(x, weight))
    for token, row in enumerate(x):
        y[token], tail = causal_conv(row, weight, tail, silu)
    return y, tail

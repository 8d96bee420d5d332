"""Golden vectors."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.causal_conv_chunk.reference import causal_conv_chunk
from npu_kernels.golden import Expected, Golden, spread


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    tokens, channels, taps = (parameters[name] for name in ("T", "N", "TAPS"))
    x, weight = spread(random, tokens, channels), spread(random, taps, channels)
    tail = spread(random, taps - 1, channels)
    silu = bool(parameters["SILU"])
    y, following = causal_conv_chunk(x.astype(np.float64), weight, tail, silu)
    before = [x, weight, tail, np.zeros_like(x)]
    return Golden(before, [Expected("y", y), Expected("tail", following)])

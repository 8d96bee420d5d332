"""Golden vectors."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.causal_conv.reference import causal_conv
from npu_kernels.golden import Expected, Golden, spread, together


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    tokens, channels, taps = (parameters[name] for name in ("T", "N", "TAPS"))
    values = spread(random, (tokens - 1) * parameters["ROW"] + channels)
    x, weight = (
        together(values, tokens, parameters["ROW"], channels),
        spread(random, taps, channels),
    )
    tail = spread(random, taps - 1, channels)
    y, following = causal_conv(x.astype(np.float64), weight, tail, bool(parameters["SILU"]))
    before = [values, weight, tail, np.zeros_like(x)]
    return Golden(before, [Expected("y", y), Expected("tail", following)])

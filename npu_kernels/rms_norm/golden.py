"""Golden vectors of the designs."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.bf16 import value_of
from npu_kernels.golden import Expected, Golden, spread, together
from npu_kernels.rms_norm.reference import rms_norm


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    n, heads, tokens = parameters["N"], parameters.get("HEADS", 1), parameters.get("T", 1)
    if design == "residual_sum":
        x, residual = spread(random, tokens, n), spread(random, tokens, n)
        return Golden([x, residual, np.zeros_like(x)], [Expected("sum", x + residual)])
    epsilon = value_of(parameters["EPSILON"])
    weight = spread(random, n)
    if design == "rms_norm":
        values = spread(random, (tokens - 1) * parameters["ROW"] + heads * n)
        x = together(values, tokens, parameters["ROW"], heads * n).reshape(-1, n)
        exact = rms_norm(x.astype(np.float64), weight, epsilon)
        return Golden([values, weight, np.zeros_like(x)], [Expected("y", exact)])
    x = spread(random, 1, n)
    residual = spread(random, n)
    total = x[0] + residual
    exact = rms_norm(total.astype(np.float64), weight, epsilon)
    before = [x[0], residual, weight, np.zeros_like(total), np.zeros_like(total)]
    return Golden(before, [Expected("y", exact), Expected("sum", total)])

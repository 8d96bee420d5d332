"""Golden vectors of both designs."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.bf16 import value_of
from npu_kernels.golden import Expected, Golden, spread
from npu_kernels.rms_norm.reference import rms_norm


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    n, heads = parameters["N"], parameters.get("HEADS", 1)
    epsilon = value_of(parameters["EPSILON"])
    x, weight = spread(random, heads, n), spread(random, n)
    if design == "rms_norm":
        exact = rms_norm(x.astype(np.float64), weight, epsilon)
        return Golden([x, weight, np.zeros_like(x)], [Expected("y", exact)])
    residual = spread(random, n)
    total = x[0] + residual
    exact = rms_norm(total.astype(np.float64), weight, epsilon)
    before = [x[0], residual, weight, np.zeros_like(total), np.zeros_like(total)]
    return Golden(before, [Expected("y", exact), Expected("sum", total)])

"""Golden vectors."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.bf16 import value_of
from npu_kernels.gated_rms_norm.reference import gated_rms_norm
from npu_kernels.golden import Expected, Golden, spread


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    shape = parameters["HEADS"], parameters["W"]
    epsilon = value_of(parameters["EPSILON"])
    x, gate, weight = spread(random, *shape), spread(random, *shape), spread(random, shape[1])
    exact = gated_rms_norm(x.astype(np.float64), gate.astype(np.float64), weight, epsilon)
    return Golden([x, gate, weight, np.zeros_like(x)], [Expected("y", exact)])

"""Golden vectors."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.gate.reference import gate
from npu_kernels.golden import Expected, Golden, spread


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    x, gates = spread(random, parameters["N"]), spread(random, parameters["N"])
    exact = gate(x.astype(np.float64), gates.astype(np.float64))
    return Golden([x, gates, np.zeros_like(x)], [Expected("y", exact)])

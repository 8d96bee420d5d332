"""Golden vectors."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.golden import Expected, Golden, spread
from npu_kernels.swiglu.reference import swiglu


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    gate, up = spread(random, parameters["N"]), spread(random, parameters["N"])
    return Golden(
        [gate, up, np.zeros_like(gate)], [Expected("y", swiglu(gate.astype(np.float64), up))]
    )

"""Golden vectors."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.golden import Expected, Golden, spread, together
from npu_kernels.swiglu.reference import swiglu


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    count, tokens, row = (parameters[name] for name in ("N", "T", "ROW"))
    values = [spread(random, (tokens - 1) * row + count) for _ in range(2)]
    gate, up = (together(each, tokens, row, count) for each in values)
    exact = swiglu(gate.astype(np.float64), up)
    return Golden([*values, np.zeros_like(gate)], [Expected("y", exact)])

"""Golden vectors."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.gate.reference import gate
from npu_kernels.golden import Expected, Golden, spread, together


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    count, tokens, row = (parameters[name] for name in ("N", "T", "ROW"))
    x, values = spread(random, tokens, count), spread(random, (tokens - 1) * row + count)
    gates = together(values, tokens, row, count)
    exact = gate(x.astype(np.float64), gates.astype(np.float64))
    return Golden([x, values, np.zeros_like(x)], [Expected("y", exact)])

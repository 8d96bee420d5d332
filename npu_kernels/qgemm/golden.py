"""Golden vectors: activations and weights are bfloat16 already, so that nothing is rounded."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.bf16 import rounded
from npu_kernels.golden import Expected, Golden
from npu_kernels.qgemm.reference import qgemm
from npu_kernels.qlinear import reference


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    tokens, rows, columns = parameters["T"], parameters["N"], 256 * parameters["KB"]
    codes = random.integers(0, 16, (rows, columns), np.uint8)
    scales = np.exp2(random.integers(-9, -3, (rows, columns // reference.BLOCK))).astype(np.float32)
    chunks = reference.pack(codes, scales, scales * random.integers(-3, 4, scales.shape))
    x = rounded(random.standard_normal((tokens, columns)))
    exact = qgemm(x, chunks)
    return Golden([x, chunks, np.zeros_like(exact, np.float32)], [Expected("y", exact)])

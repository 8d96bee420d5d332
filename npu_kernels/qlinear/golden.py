"""Golden vectors, of 8 bits, too. Activations are bfloat16, so that the table is exact."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from npu_kernels.bf16 import rounded
from npu_kernels.golden import Expected, Golden
from npu_kernels.qlinear import reference

Array = np.ndarray[Any, np.dtype[Any]]


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    return product(reference.pack, reference.qlinear, reference.CENTRE, parameters, random)


def product(
    pack: Callable[[Array, Array, Array | None], Array],
    multiply: Callable[[Array, Array], Array],
    centre: int,
    parameters: Mapping[str, int],
    random: np.random.Generator,
    block: int = reference.BLOCK,
) -> Golden:
    """Blocks of 32 have minimums."""
    rows, columns = parameters["N"], parameters["K"]
    codes = random.integers(0, 2 * centre, (rows, columns), np.uint8)
    scales = rounded(np.exp2(random.uniform(-12, -2, (rows, columns // block))))
    small = rounded(scales * random.standard_normal(scales.shape))
    minimum = small if block == reference.BLOCK else None
    chunks = pack(codes, scales, minimum)
    x = rounded(random.standard_normal(-(-columns // 256) * 256))
    exact = multiply(chunks, reference.table(x))
    return Golden([x, chunks, np.zeros(len(exact), np.float32)], [Expected("y", exact)])

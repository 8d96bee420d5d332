"""Golden vectors: activations are bfloat16 already, so that nothing is rounded."""

from collections.abc import Callable, Mapping

import numpy as np

from npu_kernels.bf16 import rounded
from npu_kernels.golden import Expected, Golden
from npu_kernels.qgemm.reference import Array, qgemm
from npu_kernels.qlinear import reference


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    return product(reference.pack, qgemm, reference.CENTRE, parameters, random)


def product(
    pack: Callable[[Array, Array, Array | None], Array],
    exact: Callable[[Array, Array], Array],
    centre: int,
    parameters: Mapping[str, int],
    random: np.random.Generator,
    block: int = reference.BLOCK,
) -> Golden:
    """Blocks of 32 have minimums."""
    tokens, rows, columns = parameters["T"], parameters["N"], parameters["K"]
    codes = random.integers(centre - 8, centre + 8, (rows, columns), np.uint8)
    scales = np.exp2(random.integers(-9, -3, (rows, columns // block))).astype(np.float32)
    minimum = scales * random.integers(-3, 4, scales.shape)
    chunks = pack(codes, scales, minimum if block == reference.BLOCK else None)
    x = rounded(random.standard_normal((tokens, columns)))
    rest = np.zeros(-columns % reference.COLUMNS, np.float32)
    y = exact(np.pad(x, ((0, 0), (0, len(rest)))), chunks)
    return Golden(
        [np.concatenate([x.ravel(), rest]), chunks, np.zeros_like(y, np.float32)],
        [Expected("y", y)],
    )

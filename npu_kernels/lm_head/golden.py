"""Golden vectors of small whole numbers: nothing is rounded, and some logits are equal."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.golden import Expected, Golden
from npu_kernels.lm_head import reference
from npu_kernels.lm_head.binding import product_of
from npu_kernels.qlinear.reference import BLOCK, dense

EXACT = 1e-7  # a row is a whole number below 2 ** 24
WORDS = 4096  # that differ: more are those again, also beyond the last


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    words, columns = parameters["N"], parameters["K"]
    own, fours = min(words, WORDS), -(-words // 128)
    product = product_of(parameters["BITS"], parameters["BLOCK"])
    centre = 2 ** (product.bits - 1)
    codes = random.integers(0, 2 * centre, (own, columns), np.uint8)
    shape = own, columns // product.block
    scales = np.exp2(random.integers(-3, 3, shape)).astype(np.float32)
    minimum = scales * random.integers(-3, 4, shape) * (product.block == BLOCK)
    chunks = product.pack(codes, scales, minimum if product.minimum else None)
    x = np.zeros(-(-columns // 256) * 256, np.float32)
    x[:columns] = random.integers(-8, 9, columns)
    y = np.zeros(-(-own // 128) * 128)
    y[:own] = dense(codes, scales, minimum, centre) @ x[:columns]
    y, chunks = np.resize(y, 128 * fours), np.resize(chunks, (fours, *chunks.shape[1:]))
    found = reference.found(y[:words])
    return Golden(
        [x, chunks, np.zeros(len(y), np.float32), np.zeros(reference.FOUND, np.float32)],
        [Expected("y", y, EXACT), Expected("found", found, EXACT)],
    )

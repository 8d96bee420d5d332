"""The last product: logits, and the largest that each core has found among its own."""

from typing import Any

from npu_kernels.designs import external
from npu_kernels.lm_head.binding import FOLDER, product_of
from npu_kernels.qlinear.design import Best, product


def build(N: int, K: int, BITS: int, BLOCK: int) -> Any:
    choose, types = external(FOLDER, "lm_head", {"N": N})
    finish, _ = external(FOLDER, "lm_head_best", {"N": N})
    of = product_of(BITS, BLOCK)
    best = Best(choose, finish, types["best"])
    return product(of.folder, of.design, 1024 * (1 + BITS), N, K, best)

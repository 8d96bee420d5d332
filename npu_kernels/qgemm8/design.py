"""QLinear of many tokens, 8 bits: as qgemm."""

from pathlib import Path
from typing import Any

from npu_kernels.designs import external
from npu_kernels.qgemm.design import multiplying
from npu_kernels.qlinear8.reference import CHUNK_BYTES

FOLDER = Path(__file__).parent


def build(T: int, N: int, K: int) -> Any:
    return product("qgemm8", T, N, K)


def product(symbol: str, T: int, N: int, K: int) -> Any:
    """By one of the kernels that multiply."""
    kernels = [external(FOLDER, each, {"T": T}) for each in (symbol, "qgemm8_finish")]
    return multiplying(T, N, K, kernels, CHUNK_BYTES)

"""QLinear of many tokens, 8 bits: as qgemm."""

from pathlib import Path
from typing import Any

from npu_kernels.designs import external
from npu_kernels.qgemm.design import multiplying
from npu_kernels.qlinear8.reference import CHUNK_BYTES

FOLDER = Path(__file__).parent


def build(T: int, N: int, KB: int) -> Any:
    kernels = [external(FOLDER, symbol, {"T": T}) for symbol in ("qgemm8", "qgemm8_finish")]
    return multiplying(T, N, KB, kernels, CHUNK_BYTES)

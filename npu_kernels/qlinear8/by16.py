"""In blocks of 16."""

from pathlib import Path
from typing import Any

from npu_kernels.qlinear.design import product
from npu_kernels.qlinear8.reference import CHUNK_BYTES


def build(N: int, K: int) -> Any:
    return product(Path(__file__).parent, "qlinear8_by16", CHUNK_BYTES, N, K)

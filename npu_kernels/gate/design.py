"""Gate of one token or many: up to eight cores, each with a part of the values."""

from pathlib import Path
from typing import Any

from npu_kernels.columns import value_by_value


def build(N: int, T: int, ROW: int) -> Any:
    return value_by_value(Path(__file__).parent, "gate", N, T, (N, ROW))

"""The residual sum of many tokens, whose norm is another dispatch: up to eight cores."""

from pathlib import Path
from typing import Any

from npu_kernels.columns import value_by_value


def build(N: int, T: int) -> Any:
    return value_by_value(Path(__file__).parent, "add_residual", N, T, (N, N))

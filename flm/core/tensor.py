"""What a tensor looks like, and how what a model carries from token to token may be cut."""

from dataclasses import dataclass
from enum import Enum


class MemoryKind(Enum):
    ROWS = "rows"  # one token's keys or values a row: can be cut anywhere
    STATE = "state"  # cannot be cut by token: exists only where it was captured


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A named array. `dtype` is numpy's name for it ("float32", "int64", "float16", "uint8")."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

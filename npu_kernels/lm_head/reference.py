"""The best logit, and its row."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def lm_head(logits: Array) -> tuple[float, int]:
    """Of equals, the one that comes first."""
    row = int(np.argmax(logits))
    return float(logits[row]), row

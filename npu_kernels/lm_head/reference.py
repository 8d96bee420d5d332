"""The best logit, and its row: of each core's, and of all."""

from typing import Any

import numpy as np

from npu_kernels.columns import COLUMNS
from npu_kernels.qlinear.reference import CORES, ROWS

Array = np.ndarray[Any, np.dtype[Any]]

FOUND = COLUMNS, CORES, 2, 16  # values, rows: every lane has the same
NONE = np.float32(-3.0e38)  # below any logit


def lm_head(logits: Array) -> tuple[float, int]:
    """Of equals, the one that comes first."""
    row = int(np.argmax(logits))
    return float(logits[row]), row


def found(logits: Array) -> Array:
    """What the cores find of all words' logits: [columns that have rows, 4, 2, 16]. A core without
    words has none, of its first row.
    """
    fours = -(-len(logits) // (CORES * ROWS))
    padded = np.full(fours * CORES * ROWS, NONE, np.float64)
    padded[: len(logits)] = logits
    rows = np.arange(len(padded)).reshape(fours, CORES, ROWS)
    best = []
    for own in np.array_split(rows, min(COLUMNS, fours)):
        for core in range(CORES):
            mine = own[:, core].reshape(-1)
            row = mine[np.argmax(padded[mine])]
            best.append((padded[row], row))
    return np.repeat(best, 16, axis=1).reshape(-1, CORES, 2, 16)


def best_of(found: Array, words: int) -> tuple[float, int]:
    """The same as lm_head, of what the cores have found."""
    columns = min(COLUMNS, -(-words // (CORES * ROWS)))
    values, rows = found.reshape(FOUND)[:columns, :, :, 0].reshape(-1, 2).T
    top = values.max()
    return float(top), int(rows[values == top].min())

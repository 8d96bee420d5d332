"""Decode attention of four query heads over one KV head's rows, all at once.

The kernels round queries and weights to high and low bfloat16 parts, so to nothing that shows.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

HEADS = 4  # query heads to a KV head's core; fewer are filled with zeros


def attention(query: Array, keys: Array, values: Array, scale: float) -> Array:
    """query [4, width], keys and values [tokens, width]: [4, width], in query's own type."""
    scores = query @ keys.T * query.dtype.type(scale)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights @ values / weights.sum(axis=1, keepdims=True))

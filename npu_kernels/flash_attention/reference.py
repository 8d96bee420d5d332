"""Attention of many tokens over one KV head's rows, each over those up to its own. The kernels
round queries and weights to high and low parts, so to nothing that shows.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def flash_attention(query: Array, keys: Array, values: Array, position: int, scale: float) -> Array:
    """query [tokens, heads, width] of the tokens from `position` on, keys and values [all, width]:
    [tokens, heads, width]."""
    scores = np.einsum("thd,kd->thk", query, keys) * scale
    later = np.arange(len(keys)) > position + np.arange(len(query))[:, None]
    scores = np.where(later[:, None], -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights @ values / weights.sum(axis=-1, keepdims=True))

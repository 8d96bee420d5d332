"""Positions of many tokens, and their rows. Rows are rounded to bfloat16, and nothing else."""

from typing import Any

import numpy as np

from npu_kernels.attention.reference import TOKENS, append, rope

Array = np.ndarray[Any, np.dtype[Any]]


def rotary(
    query: Array, key: Array, value: Array, cos: Array, sin: Array, blocks: Array, first: int
) -> tuple[Array, Array]:
    """query [tokens, heads, width], key and value [tokens, KV heads, width], cos and sin [tokens,
    rotary / 2], blocks uint16 [KV heads, tokens / 16, 32 * width] that have the first tokens: the
    queries turned, and the blocks with all.
    """
    turned, after = query.copy(), blocks.copy()
    for token, angles in enumerate(zip(cos, sin, strict=True)):
        turned[token] = rope(query[token], *angles)
        keys, number = rope(key[token], *angles), token // TOKENS
        for head in range(key.shape[1] if token >= first else 0):
            pair = keys[head].astype(np.float32), value[token, head].astype(np.float32)
            after[head, number] = append(*pair, after[head, number], token % TOKENS)
    return turned, after

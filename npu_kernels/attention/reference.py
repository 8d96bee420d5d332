"""Decode attention: rotary positions, a row appended, four query heads over one KV head's rows.

A block of a KV head is bfloat16 [32 * width]: keys turned, [width / 8][2][8 d][8 tokens], then
values, [2][width / 8][8 tokens][8 d]. The kernels round queries and weights to high and low parts,
so to nothing that shows.
"""

from typing import Any

import numpy as np

from npu_kernels.bf16 import to_bits

Array = np.ndarray[Any, np.dtype[Any]]

HEADS_MAX = 4  # query heads to a KV head
TOKENS = 16  # of a block
ANGLES = 64  # a position's record has a multiple of these


def attention(query: Array, keys: Array, values: Array, scale: float) -> Array:
    """query [heads, width], keys and values [tokens, width]: [heads, width], in query's type."""
    scores = query @ keys.T * query.dtype.type(scale)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights @ values / weights.sum(axis=1, keepdims=True))


def rope(x: Array, cos: Array, sin: Array) -> Array:
    """x [heads, width] with its pairs, halves of 2 * len(cos) apart, turned."""
    y, half = x.copy(), len(cos)
    a, b = x[:, :half], x[:, half : 2 * half]
    y[:, :half], y[:, half : 2 * half] = a * cos - b * sin, b * cos + a * sin
    return y


def angles(cos: Array, sin: Array, unit: int = ANGLES) -> Array:
    """cos and sin [positions, rotary / 2] as records, float32 [positions, whole units]: cos of all
    that turns, then sin, whose first half has its sign turned."""
    both = np.concatenate([cos, cos, -sin, sin], axis=1).astype(np.float32)
    return np.pad(both, ((0, 0), (0, -both.shape[1] % unit)))


def blocks(keys: Array, values: Array) -> Array:
    """bfloat16 bits [tokens, width] to blocks uint16 [tokens / 16, 32 * width]."""
    count, width = len(keys) // TOKENS, keys.shape[1]
    turned = keys.reshape(count, 2, 8, width // 8, 8).transpose(0, 3, 1, 4, 2)
    tiled = values.reshape(count, 2, 8, width // 8, 8).transpose(0, 1, 3, 2, 4)
    parts = [each.reshape(count, 16 * width) for each in (turned, tiled)]
    return np.concatenate(parts, axis=1)


def rows(blocks: Array, width: int) -> tuple[Array, Array]:
    """The inverse: keys and values [tokens, width]."""
    count = len(blocks)
    turned, tiled = blocks[:, : 16 * width], blocks[:, 16 * width :]
    keys = turned.reshape(count, width // 8, 2, 8, 8).transpose(0, 2, 4, 1, 3)
    values = tiled.reshape(count, 2, width // 8, 8, 8).transpose(0, 1, 3, 2, 4)
    return keys.reshape(-1, width), values.reshape(-1, width)


def append(key: Array, value: Array, block: Array, slot: int) -> Array:
    """A block [32 * width] with a token's key and value [width] at slot: rounded to bfloat16, the
    small ones to steps of 2^-24 before, which are float16's.
    """
    keys, values = (each.copy() for each in rows(block[None], len(key)))
    keys[slot], values[slot] = (to_bits(_in_steps(each)) for each in (key, value))
    return np.asarray(blocks(keys, values)[0])


def _in_steps(x: Array) -> Array:
    far = np.float32(0.75)  # where float32 has such steps
    return np.where(np.abs(x) < 2.0**-14, (x.astype(np.float32) + far) - far, x)

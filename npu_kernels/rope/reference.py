"""Rotary positions, and rows put into blocks of 16 tokens.

A block of a KV head is bfloat16 [32 * width]: keys turned, [width / 8][2][8 d][8 tokens], then
values, [2][width / 8][8 tokens][8 d].
"""

from typing import Any

import numpy as np

from npu_kernels.bf16 import to_bits
from npu_kernels.rms_norm.reference import rms_norm

Array = np.ndarray[Any, np.dtype[Any]]

TOKENS = 16


def rope(
    x: Array, cos: Array, sin: Array, weight: Array | None = None, epsilon: float = 0
) -> Array:
    """x [heads, width] with its pairs, halves of 2 * len(cos) apart, turned; normed first by
    weight [width] if there is one."""
    y = x.copy() if weight is None else rms_norm(x, weight, epsilon)
    half = len(cos)
    a, b = y[:, :half].copy(), y[:, half : 2 * half].copy()
    y[:, :half], y[:, half : 2 * half] = a * cos - b * sin, b * cos + a * sin
    return y


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


def append_rows(key: Array, value: Array, block: Array, slot: int) -> Array:
    """A block [32 * width] with a token's key and value [width], rounded to bfloat16, at slot."""
    keys, values = (each.copy() for each in rows(block[None], len(key)))
    keys[slot], values[slot] = to_bits(key), to_bits(value)
    return np.asarray(blocks(keys, values)[0])

"""Golden vectors of tokens of which some are in rows already."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.attention.reference import TOKENS, angles
from npu_kernels.bf16 import from_bits, rounded, to_bits
from npu_kernels.golden import Expected, Golden
from npu_kernels.rotary.reference import rotary

ROW_ERROR_MAX = 2**-8  # where a key that is not quite exact is rounded to another bfloat16


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    names = ("T", "HEADS", "KV_HEADS", "W", "R", "C")
    tokens, heads, kv_heads, width, turns, room = (parameters[name] for name in names)
    first, block = tokens // 2 - 1, (room - tokens) // TOKENS
    position = block * TOKENS
    x = random.standard_normal((tokens, heads + 2 * kv_heads, width)).astype(np.float32)
    query, key, value = np.split(x, [heads, heads + kv_heads], axis=1)
    turn = random.uniform(-np.pi, np.pi, (room, turns // 2))
    cos, sin = np.cos(turn).astype(np.float32), np.sin(turn).astype(np.float32)
    held = to_bits(rounded(random.standard_normal((kv_heads, room // TOKENS, 32 * width))))
    own, at = slice(position, position + tokens), slice(block, block + tokens // TOKENS)
    turned, after = rotary(
        query.astype(np.float64), key, value, cos[own], sin[own], held[:, at], first
    )
    rows = held.copy()
    rows[:, at] = after
    before = [x, angles(cos, sin, width), held, np.zeros_like(query)]
    expected = [
        Expected("query", turned),
        Expected("rows", from_bits(rows), ROW_ERROR_MAX, bfloat16=True),
    ]
    return Golden(before, expected, {"position": position, "block": block, "first": first})

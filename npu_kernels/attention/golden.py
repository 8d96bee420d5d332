"""Golden vectors: positions are quarter turns and rows bfloat16, so what is stored is exact."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.attention import reference
from npu_kernels.bf16 import from_bits, rounded, to_bits, value_of
from npu_kernels.golden import Expected, Golden


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    heads, kv_heads, width, rotary, room = (
        parameters[name] for name in ("HEADS", "KV_HEADS", "W", "R", "C")
    )
    scale = value_of(parameters["SCALE"])
    window = parameters["WINDOW"] or room
    position = int(random.integers(room // 2, room))
    turns = random.integers(0, 4, (room, rotary // 2))
    cos, sin = np.array([1, 0, -1, 0])[turns], np.array([0, 1, 0, -1])[turns]
    qkv = rounded(random.standard_normal((heads + 2 * kv_heads, width)))
    old = rounded(random.standard_normal((2, kv_heads, room, width)))
    turned = reference.rope(qkv[: heads + kv_heads], cos[position], sin[position])
    new = old.copy()
    new[:, :, position] = turned[heads:], qkv[heads + kv_heads :]
    before, after = (
        np.stack([reference.blocks(*map(to_bits, pair)) for pair in rows.swapaxes(0, 1)])
        for rows in (old, new)
    )
    rows = new[:, :, max(0, position + 1 - window) : position + 1]
    share, queries = heads // kv_heads, turned[:heads].astype(np.float64)
    y = [
        reference.attention(queries[head * share : (head + 1) * share], keys, values, scale)
        for head, (keys, values) in enumerate(rows.swapaxes(0, 1))
    ]
    return Golden(
        [qkv, reference.angles(cos, sin), before, np.zeros((heads, width), np.float32)],
        [Expected("y", np.concatenate(y)), Expected("rows", from_bits(after), bfloat16=True)],
        {"position": position, "block": position // 16, "rounds": position // 64 + 1},
    )

"""Golden vectors of tokens after others, in blocks of which the last is not full."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.attention.reference import TOKENS, blocks
from npu_kernels.bf16 import rounded, to_bits, value_of
from npu_kernels.flash_attention.reference import flash_attention
from npu_kernels.golden import Expected, Golden


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    names = ("T", "HEADS", "KV_HEADS", "W", "C")
    tokens, heads, kv_heads, width, room = (parameters[name] for name in names)
    scale = value_of(parameters["SCALE"])
    position = min(room - tokens, 3 * TOKENS) - 1
    query = random.standard_normal((tokens, kv_heads, heads // kv_heads, width)).astype(np.float32)
    keys, values = (rounded(random.standard_normal((kv_heads, room, width))) for _ in range(2))
    y = np.empty(query.shape)
    for head in range(kv_heads):
        k, v = (each[head, : position + tokens] for each in (keys, values))
        y[:, head] = flash_attention(query[:, head].astype(np.float64), k, v, position, scale)
    rows = [blocks(*pair) for pair in zip(to_bits(keys), to_bits(values), strict=True)]
    given = {"position": position, "blocks": -(-(position + tokens) // TOKENS)}
    return Golden([query, np.stack(rows), np.zeros_like(query)], [Expected("y", y)], given)

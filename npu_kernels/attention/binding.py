"""Attention and PackedAttention over all rows, without sinks that weigh anything."""

import numpy as np

from npu_kernels.attention.reference import HEADS_MAX, TOKENS, angles
from npu_kernels.bf16 import bits_of
from npu_kernels.binding import Array, Binding, Constant, Joined, Memory, Node, Value

LANES = 16  # values a kernel takes at a time
ROUND = 4 * TOKENS  # tokens that a column's cores take in one go
ROUNDS_MIN = 3  # so many values tell where one enters a stream
NO_WEIGHT = -1e4  # a sink's score so low takes nothing from any row


def bind(node: Node) -> tuple[Binding, ...]:
    _, kv_heads, capacity, width = node.inputs["past_key"].shape
    attributes, heads = node.attributes, node.attributes["num_heads"]
    if (
        not attributes["rotary"]
        or attributes["window"] != -1
        or heads > HEADS_MAX * kv_heads
        or not capacity
        or node.constants.get("sinks", np.array(NO_WEIGHT)).max() > NO_WEIGHT
    ):
        return ()
    cos, sin = node.constants["cos"], node.constants["sin"]
    turned, room = 2 * cos.shape[1], ROUND * max(ROUNDS_MIN, -(-capacity // ROUND))
    if width % LANES or turned % LANES:
        return ()
    parameters = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "W": width,
        "R": turned,
        "C": room,
        "SCALE": bits_of(attributes["scale"]),
    }
    arguments = {
        "qkv": _together(node, heads * width, kv_heads * width),
        "angles": Constant(lambda: _angles(cos, sin, room)),
        "rows": Memory(("past_key", "past_value"), "blocks16"),
        "y": Value("y"),
    }
    values = {"position": "offset", "block": "offset // 16", "rounds": "offset // 64 + 1"}
    return (Binding("attention", "attention", parameters, arguments, values),)


def _together(node: Node, wide: int, narrow: int) -> Value | Joined:
    if node.function == "PackedAttention":
        return Value("query")
    starts = {"query": 0, "key": 4 * wide, "value": 4 * (wide + narrow)}
    return Joined(tuple((start, Value(name)) for name, start in starts.items()))


def _angles(cos: Array, sin: Array, room: int) -> Array:
    """Of as many positions as there is room for tokens."""
    found = angles(cos[:room], sin[:room])
    return np.pad(found, ((0, room - len(found)), (0, 0)))

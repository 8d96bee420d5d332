"""Attention and PackedAttention over all rows or a window; without sinks that weigh anything."""

import numpy as np

from npu_kernels.attention.reference import ANGLES, HEADS_MAX, TOKENS, angles
from npu_kernels.bf16 import bits_of
from npu_kernels.binding import Array, Binding, Constant, Joined, Node, Operand, Rows

LANES = 16  # values a kernel takes at a time
ROUND = 4 * TOKENS  # tokens that a column's cores take in one go
ROUNDS_MIN = 3  # so many values tell where one enters a stream
NO_WEIGHT = -1e4  # a sink's score so low takes nothing from any row


def bind(node: Node) -> tuple[Binding, ...]:
    shape = shape_of(node)
    if node.tokens != 1 or not shape or shape["HEADS"] > HEADS_MAX * shape["KV_HEADS"]:
        return ()
    heads, kv_heads, width, room = (shape[name] for name in ("HEADS", "KV_HEADS", "W", "C"))
    arguments = {
        "qkv": together(node, heads * width, kv_heads * width),
        "angles": angles_of(node, room, ANGLES),
        "rows": Rows(("past_key", "past_value")),
        "y": Operand("y"),
    }
    scale, window = node.attributes["scale"], node.attributes["window"]
    parameters = shape | {"SCALE": bits_of(scale), "WINDOW": max(0, window)}
    values = {"position": "offset", "block": "offset // 16", "rounds": "offset // 64 + 1"}
    return (Binding("attention", "attention", parameters, arguments, values),)


def shape_of(node: Node) -> dict[str, int]:
    """What designs ask for; nothing where none has it."""
    _, kv_heads, capacity, width = node.inputs["past_key"].shape
    attributes = node.attributes
    if (
        not attributes["rotary"]
        or not capacity
        or node.constants.get("sinks", np.array(NO_WEIGHT)).max() > NO_WEIGHT
    ):
        return {}
    turned, room = (
        2 * node.constants["cos"].shape[1],
        ROUND * max(ROUNDS_MIN, -(-capacity // ROUND)),
    )
    if width % LANES or turned % LANES:
        return {}
    return {
        "HEADS": attributes["num_heads"],
        "KV_HEADS": kv_heads,
        "W": width,
        "R": turned,
        "C": room,
    }


def together(node: Node, wide: int, narrow: int) -> Operand | Joined:
    """Each token's queries, keys and values, one after another."""
    if node.function == "PackedAttention":
        return Operand("query")
    starts = {"query": 0, "key": 4 * wide, "value": 4 * (wide + narrow)}
    row = 4 * (wide + 2 * narrow) if node.tokens > 1 else 0
    return Joined(tuple((start, Operand(name, row=row)) for name, start in starts.items()))


def angles_of(node: Node, room: int, unit: int) -> Constant:
    """Of as many positions as there is room for tokens."""

    def pack() -> Array:
        found = angles(node.constants["cos"][:room], node.constants["sin"][:room], unit)
        return np.pad(found, ((0, room - len(found)), (0, 0)))

    return Constant(pack, f"angles {unit}", ("cos", "sin"))

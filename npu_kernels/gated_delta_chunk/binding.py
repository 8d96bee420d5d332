"""GatedDelta of 32 tokens."""

from npu_kernels.bf16 import bits_of
from npu_kernels.binding import Binding, Constant, Joined, Node, Operand, Source, State
from npu_kernels.columns import columns_of
from npu_kernels.gated_delta.reference import slices
from npu_kernels.gated_delta_chunk.reference import LANES, TOKENS, constants

WIDTHS = (16, 32, 64, 128)


def bind(node: Node) -> tuple[Binding, ...]:
    _, heads, width, _ = node.inputs["state"].shape
    keys, bias, rate = (
        node.attributes["key_heads"],
        node.constants["decay_bias"],
        node.constants["decay_rate"],
    )
    columns = columns_of(keys)
    if node.tokens != TOKENS or width not in WIDTHS or heads // columns > LANES:
        return ()
    parts, start = [], 0
    for name in ("query", "key", "value", "a", "b"):
        parts.append((start, Operand(name)))
        start += node.inputs[name].nbytes
    arguments: dict[str, Source] = {
        "inputs": Joined(tuple(parts)),
        "constants": Constant(lambda: constants(bias, rate, columns), "columns"),
        "state": State(("state",), slices),
        "y": Operand("y"),
    }
    scale = bits_of(node.attributes["scale"])
    parameters = {"KH": keys, "H": heads, "W": width, "SCALE": scale}
    return (Binding("gated_delta_chunk", "gated_delta_chunk", parameters, arguments),)

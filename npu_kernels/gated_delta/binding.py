"""GatedDelta."""

from npu_kernels.bf16 import bits_of
from npu_kernels.binding import Binding, Constant, Joined, Node, Operand, Source, State
from npu_kernels.gated_delta.reference import COLUMNS, LANES, slices, together

WIDTH_MAX = 128


def bind(node: Node) -> tuple[Binding, ...]:
    _, heads, width, _ = node.inputs["state"].shape
    if node.tokens != 1 or width % COLUMNS or width > WIDTH_MAX:
        return ()
    keys, bias, rate = (
        node.attributes["key_heads"],
        node.constants["decay_bias"],
        node.constants["decay_rate"],
    )
    parameters = {"KH": keys, "H": heads, "W": width, "SCALE": bits_of(node.attributes["scale"])}
    arguments: dict[str, Source] = {
        "inputs": _inputs(keys * width, heads * width, heads),
        "constants": Constant(lambda: together(bias, rate), "lanes"),
        "state": State(("state",), slices),
        "y": Operand("y"),
    }
    return (Binding("gated_delta", "gated_delta", parameters, arguments),)


def _inputs(narrow: int, wide: int, heads: int) -> Joined:
    sizes = {"query": narrow, "key": narrow, "value": wide, "a": -(-heads // LANES) * LANES, "b": 0}
    parts, start = [], 0
    for name, size in sizes.items():
        parts.append((start, Operand(name)))
        start += 4 * size
    return Joined(tuple(parts))

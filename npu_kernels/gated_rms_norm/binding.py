"""GatedRMSNorm."""

from npu_kernels.bf16 import bits_of
from npu_kernels.binding import Binding, Constant, Node, Operand, Source

LANES = 16  # values a kernel takes at a time


def bind(node: Node) -> tuple[Binding, ...]:
    weight, (*_, each, width) = node.constants["weight"], node.attributes["by_head"]
    heads = each * node.tokens
    if width % LANES:
        return ()
    parameters = {"HEADS": heads, "W": width, "EPSILON": bits_of(node.attributes["epsilon"])}
    arguments: dict[str, Source] = {
        "x": Operand("x"),
        "gate": Operand("gate"),
        "weight": Constant(lambda: weight, "plain"),
        "y": Operand("y"),
    }
    return (Binding("gated_rms_norm", "gated_rms_norm", parameters, arguments),)

"""CausalConv and CausalConvSilu."""

from npu_kernels.binding import Binding, Constant, Node, Operand, Source, State
from npu_kernels.causal_conv.reference import pack
from npu_kernels.columns import RUN

TOKENS_MAX = 32


def bind(node: Node) -> tuple[Binding, ...]:
    weight = node.constants["weight"]  # [channels, 1, taps]
    channels, _, taps = weight.shape
    if channels % RUN or node.tokens > TOKENS_MAX:
        return ()
    x, silu = node.inputs["x"], node.function == "CausalConvSilu"
    parameters = {
        "T": node.tokens,
        "N": channels,
        "ROW": x.apart,
        "TAPS": taps,
        "SILU": int(silu),
    }
    arguments: dict[str, Source] = {
        "x": Operand("x", row=x.row),
        "weight": Constant(lambda: pack(weight), "taps"),
        "tail": State(("tail",)),
        "y": Operand("y"),
    }
    return (Binding("causal_conv", "causal_conv", parameters, arguments),)

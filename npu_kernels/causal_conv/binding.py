"""CausalConv and CausalConvSilu."""

from npu_kernels.binding import Binding, Constant, Memory, Node, Source, Value
from npu_kernels.causal_conv.reference import pack
from npu_kernels.columns import RUN


def bind(node: Node) -> tuple[Binding, ...]:
    weight = node.constants["weight"]  # [channels, 1, taps]
    channels, _, taps = weight.shape
    if channels % RUN:
        return ()
    silu = node.function == "CausalConvSilu"
    parameters = {"T": 1, "N": channels, "TAPS": taps, "SILU": int(silu)}
    arguments: dict[str, Source] = {
        "x": Value("x"),
        "weight": Constant(lambda: pack(weight)),
        "tail": Memory(("tail",), "plain"),
        "y": Value("y"),
    }
    return (Binding("causal_conv", "causal_conv", parameters, arguments),)

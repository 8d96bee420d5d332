"""SwiGLU."""

from npu_kernels.binding import Binding, Node, Value
from npu_kernels.columns import RUN


def bind(node: Node) -> tuple[Binding, ...]:
    size = node.inputs["gate"].shape[-1]
    if size % RUN:
        return ()
    arguments = {name: Value(name) for name in ("gate", "up", "y")}
    return (Binding("swiglu", "swiglu", {"N": size}, arguments),)

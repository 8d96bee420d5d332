"""SwiGLU."""

from npu_kernels.binding import Binding, Node, Value

RUN = 64  # values that a core takes a multiple of


def bind(node: Node) -> tuple[Binding, ...]:
    size = node.inputs["gate"].shape[-1]
    if size % RUN:
        return ()
    arguments = {name: Value(name) for name in ("gate", "up", "y")}
    return (Binding("swiglu", "swiglu", {"N": size}, arguments),)

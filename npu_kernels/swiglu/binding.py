"""SwiGLU."""

from npu_kernels.binding import Binding, Node, Operand
from npu_kernels.columns import RUN


def bind(node: Node) -> tuple[Binding, ...]:
    gate, up = node.inputs["gate"], node.inputs["up"]
    size, alike = gate.shape[-1], gate.row == up.row
    if size % RUN:
        return ()
    parameters = {"N": size, "T": node.tokens, "ROW": gate.apart if alike else size}
    row = gate.row if alike else 0
    arguments = {"gate": Operand("gate", row=row), "up": Operand("up", row=row), "y": Operand("y")}
    return (Binding("swiglu", "swiglu", parameters, arguments),)

"""Gate."""

from npu_kernels.binding import Binding, Node, Operand
from npu_kernels.columns import RUN


def bind(node: Node) -> tuple[Binding, ...]:
    gate = node.inputs["gate"]
    size = gate.shape[-1]
    if size % RUN:
        return ()
    parameters = {"N": size, "T": node.tokens, "ROW": gate.apart}
    arguments = {"x": Operand("x"), "gate": Operand("gate", row=gate.row), "y": Operand("y")}
    return (Binding("gate", "gate", parameters, arguments),)

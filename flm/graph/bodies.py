"""What the bodies of functions in domain `flm` are written with."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flm.devices.device import MICROSOFT, OPSET
from flm.graph.emit import OURS

if TYPE_CHECKING:
    import onnx


def node(
    type: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: Any
) -> "onnx.NodeProto":
    """A node of a body; an attribute given as `ref(kind, name)` takes the caller's."""
    import onnx
    from onnx import helper

    fixed = {k: v for k, v in attributes.items() if not isinstance(v, onnx.AttributeProto)}
    made = helper.make_node(type, inputs, outputs, domain=domain, **fixed)
    for name, value in attributes.items():
        if isinstance(value, onnx.AttributeProto):
            value.name = name
            made.attribute.append(value)
    return made


def ref(kind: str, name: str) -> "onnx.AttributeProto":
    """The caller's attribute `name`: of an int, ints or a float."""
    import onnx

    kinds = {
        "int": onnx.AttributeProto.INT,
        "ints": onnx.AttributeProto.INTS,
        "float": onnx.AttributeProto.FLOAT,
        "string": onnx.AttributeProto.STRING,
    }
    return onnx.AttributeProto(ref_attr_name=name, type=kinds[kind])


def function(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    attributes: Sequence[str],
    nodes: Sequence["onnx.NodeProto"],
) -> "onnx.FunctionProto":
    from onnx import helper

    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_function(OURS, name, inputs, outputs, nodes, opsets, attributes)

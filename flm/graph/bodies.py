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


def grouped_query(
    inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
) -> "onnx.NodeProto":
    """onnxruntime's attention; how many heads, and their scale, are the caller's."""
    return node(
        "GroupQueryAttention",
        inputs,
        outputs,
        MICROSOFT,
        num_heads=ref("int", "num_heads"),
        kv_num_heads=ref("int", "kv_num_heads"),
        scale=ref("float", "scale"),
        **attributes,
    )


def cast(parts: Sequence[str]) -> "list[onnx.NodeProto]":
    """Each as rows are kept, named with `_cast` behind it."""
    return [node("Cast", [part], [f"{part}_cast"], to=ref("int", "row_type")) for part in parts]


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

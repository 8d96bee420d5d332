"""What the CPU runs: parts of a graph, and all of it for several tokens at a time.

Weights stay in the model's file. Where kernels keep rows in bfloat16, reading rounds keys and
values to it before attention sees them, so that a row is the same whether it was just read, or put
back after it had been saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flm.devices.device import IDS, MICROSOFT, OFFSETS, OUT
from flm.devices.xrt.graph import OURS, Graph
from flm.devices.xrt.plan import HostPart

if TYPE_CHECKING:
    import onnx

BFLOAT16, INT64 = 16, 7  # ONNX's numbers of them
POSITIONS = "xrt/positions"  # [B, T] of a pass's tokens


def part_model(graph: Graph, part: HostPart) -> onnx.ModelProto:
    infos = [_info(graph, name) for name in part.inputs], [_info(graph, n) for n in part.outputs]
    return _model(graph, part.nodes, *infos)


def whole_model(graph: Graph, tiled: Iterable[str]) -> onnx.ModelProto:
    """All of the graph, for any lanes and tokens; `tiled` are rows that are kept in bfloat16."""
    rows, given = set(tiled), graph.model.graph
    nodes: list[onnx.NodeProto] = list(_positions()) if rows else []
    for proto in given.node:
        names = graph.names(proto) if proto.domain == OURS else {}
        is_tiled = names.get("past_key") in rows
        nodes += _rounded(graph, proto) if is_tiled else [proto]
    return _model(graph, nodes, given.input, given.output)


def _model(
    graph: Graph,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    from onnx import helper

    read = {name for node in nodes for name in node.input}
    weights = [tensor for tensor in graph.model.graph.initializer if tensor.name in read]
    made = helper.make_graph(nodes, "part", inputs, outputs, weights)
    return helper.make_model(
        made,
        opset_imports=graph.model.opset_import,
        functions=graph.model.functions,
        ir_version=graph.model.ir_version,
    )


def _info(graph: Graph, name: str) -> onnx.ValueInfoProto:
    from onnx import helper

    tensor = graph.tensors[name]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
    rows = [value for value in graph.model.graph.input if value.name == name.removesuffix(OUT)]
    shape: list[int | str] = list(tensor.shape)
    if rows and len(shape) == 4 and rows[0].type.tensor_type.shape.dim[2].dim_param:
        shape[2] = "C"  # a buffer has what room it has
    return helper.make_tensor_value_info(name, element, shape)


def _positions() -> Iterator[onnx.NodeProto]:
    """Where each token of a pass stands: its lane's offset and its place in the pass."""
    from onnx import helper

    def constant(name: str, **value: Any) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [f"xrt/{name}"], **value)

    yield constant("zero", value_int=0)
    yield constant("one", value_int=1)
    yield constant("axis", value_ints=[1])
    yield helper.make_node("Shape", [IDS], ["xrt/shape"])
    yield helper.make_node("Gather", ["xrt/shape", "xrt/one"], ["xrt/count"])
    yield helper.make_node("Range", ["xrt/zero", "xrt/count", "xrt/one"], ["xrt/places"])
    yield helper.make_node("Cast", [OFFSETS], ["xrt/offsets"], to=INT64)
    yield helper.make_node("Unsqueeze", ["xrt/offsets", "xrt/axis"], ["xrt/starts"])
    yield helper.make_node("Add", ["xrt/starts", "xrt/places"], [POSITIONS])


def _rounded(graph: Graph, proto: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Attention whose keys, once turned, and values are rounded before they are appended."""
    from onnx import helper

    node, names = graph.node(proto), graph.names(proto)
    settings = node.attributes
    heads, kv_heads = settings["num_heads"], settings["kv_num_heads"]
    width, row_type = node.inputs["past_key"].shape[3], settings["row_type"]

    def made(type: str, inputs: list[str], *outputs: str, domain: str = "", **more: Any) -> str:
        made_outputs = [f"{proto.name}/{output}" for output in outputs]
        nodes.append(helper.make_node(type, inputs, made_outputs, domain=domain, **more))
        return made_outputs[0]

    nodes: list[onnx.NodeProto] = []
    parts = [names[part] for part in ("query", "key", "value") if part in names]
    if len(parts) == 1:
        sizes = made("Constant", [], "sizes", value_ints=[heads * width, *2 * [kv_heads * width]])
        made("Split", [parts[0], sizes], "query", "key", "value", axis=-1)
        parts = [f"{proto.name}/{part}" for part in ("query", "key", "value")]
    parts = [made("Cast", [part], f"{n}.cast", to=row_type) for n, part in enumerate(parts)]
    if settings["rotary"]:
        turns = 2 * node.inputs["cos"].shape[1]
        for n, count in enumerate((heads, kv_heads)):
            inputs = [parts[n], POSITIONS, names["cos"], names["sin"]]
            partial = turns if turns < width else 0
            parts[n] = made(
                "RotaryEmbedding",
                inputs,
                f"{n}.turned",
                domain=MICROSOFT,
                num_heads=count,
                rotary_embedding_dim=partial,
            )
    for n in (1, 2):
        short = made("Cast", [parts[n]], f"{n}.short", to=BFLOAT16)
        parts[n] = made("Cast", [short], f"{n}.rounded", to=row_type)
    past = [names[n] for n in ("past_key", "past_value", "lengths", "total")]
    attended = f"{proto.name}/attended.cast"
    nodes.append(
        helper.make_node(
            "GroupQueryAttention",
            [*parts, *past, "", "", "", "", names.get("sinks", "")],
            [attended, names["past_key"] + OUT, names["past_value"] + OUT],
            domain=MICROSOFT,
            num_heads=heads,
            kv_num_heads=kv_heads,
            scale=settings["scale"],
            local_window_size=settings["window"],
            do_rotary=0,
        )
    )
    made_y = helper.make_node("Cast", [attended], [names["y"]], to=1)
    return iter([*nodes, made_y])

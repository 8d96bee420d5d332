"""A model's graph as the plan reads it: nodes of domain flm with shapes for one token of one lane.

onnxruntime finds the shapes, over a copy of the graph that has weights for inputs: nothing of them
is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flm.devices.device import LOGITS, Array
from npu_kernels.binding import Node, Tensor

if TYPE_CHECKING:
    import onnx

OURS = "flm"
SIZES = {"B": 1, "T": 1}
_DTYPES = {"float": "float32", "double": "float64"}


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    model: onnx.ModelProto  # without its weights
    folder: Path  # where they are
    tensors: Mapping[str, Tensor]  # every value but constants
    constants: Mapping[str, Array]  # weights are mapped, not read

    def node(self, proto: onnx.NodeProto) -> Node:
        from onnx import helper

        inputs, outputs = self._named(proto)
        return Node(
            proto.op_type,
            {a.name: helper.get_attribute_value(a) for a in proto.attribute},
            {formal: self.tensor(name) for formal, name in inputs.items()},
            {formal: self.tensors[name] for formal, name in outputs.items()},
            {f: self.constants[name] for f, name in inputs.items() if name in self.constants},
            LOGITS in proto.output,
        )

    def names(self, proto: onnx.NodeProto) -> Mapping[str, str]:
        """The graph's names of a node's inputs and outputs, by the function's own."""
        inputs, outputs = self._named(proto)
        return inputs | outputs

    def _named(self, proto: onnx.NodeProto) -> tuple[dict[str, str], dict[str, str]]:
        function = next(f for f in self.model.functions if f.name == proto.op_type)
        ends = (function.input, proto.input), (function.output, proto.output)
        given, made = (
            {f: name for f, name in zip(formal, names, strict=False) if name}
            for formal, names in ends
        )
        return given, made

    def tensor(self, name: str) -> Tensor:
        if name in self.constants:
            array = self.constants[name]
            return Tensor(array.shape, array.dtype.name)
        return self.tensors[name]


def read(path: Path, capacity: int) -> Graph:
    """`capacity`: rows that a lane may hold."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    tensors = _tensors(model, capacity)
    return Graph(model, path.parent, tensors, _constants(model, path.parent))


def _constants(model: onnx.ModelProto, folder: Path) -> dict[str, Array]:
    from onnx import helper, numpy_helper

    files: dict[str, Array] = {}
    found: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        where: dict[str, Any] = {entry.key: entry.value for entry in tensor.external_data}
        if not where:
            found[tensor.name] = numpy_helper.to_array(tensor)
            continue
        name, start, count = where["location"], int(where["offset"]), int(where["length"])
        if name not in files:
            files[name] = np.memmap(folder / name, np.uint8, "r")
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        found[tensor.name] = files[name][start : start + count].view(dtype).reshape(tensor.dims)
    return found


def _tensors(model: onnx.ModelProto, capacity: int) -> dict[str, Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        _without_weights(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return {
        each.name: Tensor(
            tuple(size if isinstance(size, int) else capacity for size in each.shape),
            _dtype(each.type),
        )
        for each in [*session.get_inputs(), *session.get_outputs()]
    }


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """For one token of one lane; every value leaves it."""
    import onnx
    from onnx import helper

    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    graph = bare.graph
    for value in graph.input:
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param in SIZES:
                size.dim_value = SIZES[size.dim_param]
    weights = [tensor for tensor in graph.initializer if tensor.external_data]
    small = [tensor for tensor in graph.initializer if not tensor.external_data]
    del graph.initializer[:]
    graph.initializer.extend(small)
    graph.input.extend(
        helper.make_tensor_value_info(w.name, w.data_type, list(w.dims)) for w in weights
    )
    del graph.output[:]
    names = [name for node in graph.node for name in node.output if name]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return bare


def _dtype(type: str) -> str:
    name = type.removeprefix("tensor(").removesuffix(")")
    return _DTYPES.get(name, name)

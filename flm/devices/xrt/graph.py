"""A model's graph as a plan reads it: nodes of domain flm with shapes for so many tokens of one
lane.

onnxruntime finds the shapes, over a copy of the graph that has weights for inputs: nothing of them
is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flm.core.tensor import TensorSpec
from flm.devices.device import LOGITS, Array
from npu_kernels.binding import Node, Tensor

if TYPE_CHECKING:
    import onnx

OURS = "flm"
NO_ROWS: Mapping[str, int] = {}
_DTYPES = {"float": "float32", "double": "float64"}


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    model: onnx.ModelProto  # without its weights
    folder: Path  # where they are
    tensors: Mapping[str, Tensor]  # every value but constants
    constants: Mapping[str, Array]  # weights are mapped, not read
    tokens: int = 1

    def node(self, proto: onnx.NodeProto, rows: Mapping[str, int] = NO_ROWS) -> Node:
        """`rows`: of values whose tokens do not lie one after another."""
        from onnx import helper

        inputs, outputs = self._named(proto)
        return Node(
            proto.op_type,
            {a.name: helper.get_attribute_value(a) for a in proto.attribute},
            {f: replace(self.tensor(name), row=rows.get(name, 0)) for f, name in inputs.items()},
            {formal: self.tensors[name] for formal, name in outputs.items()},
            {f: self.constants[name] for f, name in inputs.items() if name in self.constants},
            LOGITS in proto.output,
        )

    @property
    def inputs(self) -> dict[str, TensorSpec]:
        return _specs(self.model.graph.input)

    @property
    def outputs(self) -> dict[str, TensorSpec]:
        return _specs(self.model.graph.output)

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


def read(path: Path, capacity: int, tokens: int = 1) -> Graph:
    """`capacity`: rows that a lane may hold."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    tensors = _tensors(model, capacity, tokens)
    return Graph(model, path.parent, tensors, _constants(model, path.parent), tokens)


def _specs(values: Iterable[onnx.ValueInfoProto]) -> dict[str, TensorSpec]:
    """Symbolic sizes are given as 0."""
    from onnx import helper

    types = {value.name: value.type.tensor_type for value in values}
    return {
        name: TensorSpec(
            name,
            tuple(size.dim_value for size in type.shape.dim),
            helper.tensor_dtype_to_np_dtype(type.elem_type).name,
        )
        for name, type in types.items()
    }


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


def _tensors(model: onnx.ModelProto, capacity: int, tokens: int) -> dict[str, Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        _without_weights(model, tokens).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    return {
        each.name: Tensor(
            tuple(size if isinstance(size, int) else capacity for size in each.shape),
            _dtype(each.type),
        )
        for each in [*session.get_inputs(), *session.get_outputs()]
    }


def _without_weights(model: onnx.ModelProto, tokens: int) -> onnx.ModelProto:
    """For so many tokens of one lane; every value leaves it."""
    import onnx
    from onnx import helper

    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    graph, sizes = bare.graph, {"B": 1, "T": tokens}
    for value in graph.input:
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param in sizes:
                size.dim_value = sizes[size.dim_param]
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

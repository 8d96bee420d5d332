"""A thin emitter: an ONNX graph whose node names are paths and whose weights lie in one file.

`WeightStore` writes each weight once, in slabs, so that the largest tensor never stands in memory
whole; several graphs (float32 and float16 rows) then point at the same bytes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from os import posix_fallocate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flm.devices.device import IR_VERSION, MICROSOFT, OPSET, Array
from flm.errors import BadModelFile

if TYPE_CHECKING:
    import onnx

OURS = "flm"  # the domain of our functions
OPSETS = {"": OPSET, MICROSOFT: 1, OURS: 1}
ALIGNMENT = 4096  # a page, so that a mapped weight starts on one

Shape = Sequence[str | int]  # a size by name is whatever a pass brings


@dataclass(frozen=True, slots=True)
class Stored:
    """A weight in the store's file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    def reshaped(self, name: str, shape: tuple[int, ...]) -> "Stored":
        """The same bytes under another name and shape."""
        return Stored(name, self.dtype, shape, self.offset)


def finite(name: str, array: Array) -> Array:
    """The array, if it is all numbers: one that is not would make every reply fail."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadModelFile(f"tensor {name} holds values that are not numbers")
    return array


class WeightStore:
    """`progress` is told the share of `size_expected` that was written, up to 1."""

    def __init__(
        self,
        path: Path,
        *,
        size_expected: int = 0,
        progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        self.path = path
        self._size_expected = size_expected
        self._progress = progress
        self._stored: dict[str, Stored] = {}
        self._end = 0
        assert np.little_endian, "onnxruntime reads weights as little-endian"
        path.touch()

    def get(self, name: str) -> Stored | None:
        return self._stored.get(name)

    def reserve(self, name: str, shape: tuple[int, ...], dtype: str) -> tuple[Stored, Array]:
        """Room for a weight, and the mapped array to fill it through."""
        assert name not in self._stored, name
        stored = Stored(name, dtype, shape, self._end)
        self._end += -(-stored.bytes // ALIGNMENT) * ALIGNMENT
        with self.path.open("r+b") as file:  # a mapped write that finds no room is a crash
            posix_fallocate(file.fileno(), stored.offset, self._end - stored.offset)
        self._stored[name] = stored
        self._progress(min(1.0, self._end / max(1, self._size_expected)))
        mapped: Array = np.memmap(
            self.path, dtype=dtype, mode="r+", offset=stored.offset, shape=shape
        )
        return stored, mapped

    def put(self, name: str, array: Array) -> Stored:
        if found := self._stored.get(name):
            return found
        stored, mapped = self.reserve(name, array.shape, array.dtype.name)
        mapped[...] = finite(name, array)
        return stored


class Emitter:
    """Builds one graph. Outputs are value names; `scope` prefixes the names of nodes and values."""

    def __init__(self, store: WeightStore) -> None:
        self.store = store
        self._scope: list[str] = []
        self._nodes: list[onnx.NodeProto] = []
        self._functions: dict[str, onnx.FunctionProto] = {}
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._inputs: list[tuple[str, str, Shape]] = []  # name, dtype, shape
        self._outputs: list[tuple[str, str, Shape]] = []
        self._taken: dict[str, int] = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        self._scope.append(name)
        yield
        self._scope.pop()

    def path(self, name: str) -> str:
        """A name within this scope that no other node has."""
        path = "/".join([*self._scope, name])
        count = self._taken[path] = self._taken.get(path, 0) + 1
        return path if count == 1 else f"{path}.{count}"

    def input(self, name: str, dtype: str, shape: Shape) -> str:
        self._inputs.append((name, dtype, shape))
        return name

    def output(self, name: str, dtype: str, shape: Shape) -> str:
        self._outputs.append((name, dtype, shape))
        return name

    def op(
        self,
        type: str,
        inputs: Sequence[str],
        outputs: int | Sequence[str] = 1,
        *,
        domain: str = "",
        **attributes: Any,
    ) -> tuple[str, ...]:
        """One node; `outputs` counts them, or names those that leave the graph."""
        from onnx import helper

        path = self.path(type)
        if isinstance(outputs, int):
            outputs = [path if i == 0 else f"{path}:{i}" for i in range(outputs)]
        node = helper.make_node(type, inputs, outputs, name=path, domain=domain, **attributes)
        self._nodes.append(node)
        return tuple(outputs)

    def call(
        self,
        function: "onnx.FunctionProto",
        inputs: Sequence[str],
        outputs: int | Sequence[str] = 1,
        **attributes: Any,
    ) -> tuple[str, ...]:
        """One node of the domain `flm`: a kernel boundary."""
        self._functions[function.name] = function
        return self.op(function.name, inputs, outputs, domain=OURS, **attributes)

    def weight(self, stored: Stored) -> str:
        """An initializer in the store's file."""
        import onnx
        from onnx import helper

        if stored.name not in self._initializers:
            tensor = onnx.TensorProto()
            tensor.name = stored.name
            tensor.data_type = helper.np_dtype_to_tensor_dtype(np.dtype(stored.dtype))
            tensor.dims.extend(stored.shape)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            where: Mapping[str, object] = {
                "location": self.store.path.name,
                "offset": stored.offset,
                "length": stored.bytes,
            }
            for key, value in where.items():
                tensor.external_data.add(key=key, value=str(value))
            self._initializers[stored.name] = tensor
        return stored.name

    def constant(self, value: Sequence[int] | int, dtype: str = "int64") -> str:
        """A small integer tensor, written into the graph itself."""
        from onnx import numpy_helper

        array = np.array(value, dtype)
        name = f"constant/{dtype}/" + "_".join(map(str, [array.ndim, *array.reshape(-1).tolist()]))
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(array, name)
        return name

    def save(self, path: Path, name: str) -> None:
        import onnx
        from onnx import helper

        def info(name: str, dtype: str, shape: Shape) -> "onnx.ValueInfoProto":
            element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            return helper.make_tensor_value_info(name, element, shape)

        graph = helper.make_graph(
            self._nodes,
            name,
            [info(*each) for each in self._inputs],
            [info(*each) for each in self._outputs],
            list(self._initializers.values()),
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(d, v) for d, v in OPSETS.items()],
            functions=list(self._functions.values()),
            ir_version=IR_VERSION,
        )
        onnx.save(model, str(path))

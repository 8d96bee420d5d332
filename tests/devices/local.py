"""A model on a simulated NPU, in this process: what the worker does, with nothing in between."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from flm.core.tensor import TensorSpec
from flm.devices.device import IDS, LAST, LOGITS, OFFSETS
from flm.devices.xrt.build import beside
from flm.devices.xrt.local import NpuDevice
from flm.devices.xrt.memory import NpuBuffer
from flm.devices.xrt.toolchains import Simulator
from npu_kernels import fakexrt
from npu_kernels.bf16 import rounded
from tests.kernels.host import cosine
from tests.models.drive import Graph

CAPACITY = 128


def round_scales(folder: Path) -> None:
    """Of a graph's blocked weights scales and minimums become what kernels keep of them: bfloat16.
    (On a model of random weights that alone costs some 1e-4 of a cosine.)
    """
    model = onnx.load(str(folder / "graph.onnx"), load_external_data=False)
    weights = np.memmap(folder / "weights.bin", np.uint8, "r+")
    products = [n for n in model.graph.node if n.op_type in ("QLinear", "QLinearMin")]
    names = {name for node in products for name in node.input[2:]}
    for tensor in model.graph.initializer:
        if tensor.name in names:
            where = {entry.key: entry.value for entry in tensor.external_data}
            start, count = int(where["offset"]), int(where["length"])
            values = weights[start : start + count].view(np.float32)
            values[:] = rounded(values)
    weights.flush()


class LocalModel:
    """`graph`'s model once more. `lanes` lanes of memory."""

    def __init__(self, graph: Graph, folder: Path, *, lanes: int = 1) -> None:
        self._graph = graph
        self.device = NpuDevice(fakexrt, beside(Simulator()), threads=1, capacity=CAPACITY)
        self.program = self.device.load(folder / "graph.onnx")
        self.memory = self.allocate_memory(lanes)

    @property
    def vocabulary(self) -> int:
        return self._graph.emitted.vocabulary

    def allocate_memory(self, lanes: int) -> dict[str, NpuBuffer]:
        specs = (
            tensor.spec(lanes=lanes, capacity=CAPACITY)
            for tensor in self._graph.emitted.layout.tensors
        )
        return {spec.name: self._buffer(spec) for spec in specs}

    def _buffer(self, spec: TensorSpec) -> NpuBuffer:
        return self.device.allocate(spec, np.zeros(spec.shape, spec.dtype))

    def run(
        self,
        ids: npt.ArrayLike,
        offsets: npt.ArrayLike,
        lane: int = 0,
        go_on: Callable[[], bool] = lambda: True,
    ) -> npt.NDArray[np.float32]:
        """Logits [B, vocabulary] of the last of ids [B, T], in lanes from `lane` on."""
        ids, offsets = np.atleast_2d(np.asarray(ids, np.int64)), np.atleast_1d(offsets)
        count, tokens = ids.shape
        vocabulary = self._graph.emitted.vocabulary
        given = {
            IDS: ids,
            OFFSETS: offsets.astype(np.int32),
            LAST: np.array([tokens - 1]),
            LOGITS: np.zeros((count, 1, vocabulary), np.float32),
        }
        buffers = {name: each.part(lane, lane + count) for name, each in self.memory.items()}
        for name, array in given.items():
            buffers[name] = self._buffer(TensorSpec(name, array.shape, array.dtype.name))
            buffers[name].array()[...] = array
            buffers[name].to_device()
        self.program.run(buffers, go_on)
        buffers[LOGITS].to_host()
        return buffers[LOGITS].array()[:, 0].copy()

    def rows(self, name: str, rows: range, lane: int = 0) -> npt.NDArray[np.float32]:
        """What the host gets of them: [heads, rows, width]."""
        part = self.memory[name].part(lane, lane + 1)
        part.to_host(rows)
        return part.array()[0, :, rows.start : rows.stop].copy()

    def forget(self) -> None:
        """As before any token: no state."""
        for tensor in self._graph.emitted.layout.state:
            self.memory[tensor.name].array()[...] = 0
            self.memory[tensor.name].to_device()

    def reads(self, ids: npt.NDArray[np.int64], count: int, after: int) -> None:
        """A prompt of `count` tokens in one pass, and `after` tokens decoded: the logits that the
        CPU's graph gives, on lane 0.
        """
        self.forget()
        self._alike(self.run(ids[:count], 0)[0], self._graph.read(ids[:count], [count]), count)
        for offset in range(count, count + after):
            token = [ids[offset]]
            self._alike(self.run(token, offset)[0], self._graph.run(token, offset)[0], offset)

    @staticmethod
    def _alike(got: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32], where: int) -> None:
        assert cosine(got, wanted) >= 0.9999, where
        second, first = np.sort(wanted)[-2:]
        assert first - second <= 0.5 or got.argmax() == wanted.argmax(), where

    def decodes(self, ids: npt.NDArray[np.int64], start: int, count: int) -> None:
        """Teacher-forced: after `start` tokens read into fresh memory, each next one gives the
        logits that the CPU's graph gives, on lane 0.
        """
        graph = self._graph
        self.forget()
        graph.read(ids[:start], [start])
        self.run(ids[:start], 0)
        for offset in range(start, start + count):
            token = [ids[offset]]
            self._alike(self.run(token, offset)[0], graph.run(token, offset)[0], offset)

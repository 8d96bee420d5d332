"""What every device promises to those above it (flm/devices/device.py)."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flm.core.tensor import MemoryKind, TensorSpec
from flm.devices.device import IDS, LAST, LOGITS, OFFSETS, OUT, Array, Buffer, Device, Program
from flm.devices.null import NullDevice, write_model
from flm.devices.selftest import lone_row_alike
from flm.devices.xrt.device import XrtDevice
from flm.memory.layout import MemoryLayout, MemoryTensor
from tests.kernels.host import needs_compiler
from tests.models.drive import FIXTURES, Graph

STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in.py")))
LANES, CAPACITY = 3, 64
ROWS = (
    MemoryTensor("keys", MemoryKind.ROWS, (2, 4)),
    MemoryTensor("values", MemoryKind.ROWS, (2, 4), "float16"),
)
STATE = (MemoryTensor("conv", MemoryKind.STATE, (3, 5)),)
TOKENS = np.random.default_rng(7).integers(0, 500, 23).tolist()


@dataclass(frozen=True)
class Model:
    device: Device
    program: Program
    layout: MemoryLayout
    vocabulary: int

    def memory(self) -> dict[str, Buffer]:
        specs = (tensor.spec(lanes=LANES, capacity=CAPACITY) for tensor in self.layout.tensors)
        return {spec.name: self.device.allocate(spec) for spec in specs}

    def run(
        self,
        memory: dict[str, Buffer],
        ids: list[list[int]],
        offsets: list[int],
        *,
        lane: int = 0,
        last: int | None = None,
    ) -> Array:
        """Logits [len(ids), vocabulary] of a pass over lanes [lane, lane + len(ids))."""
        stop = lane + len(ids)
        buffers = {name: buffer.part(lane, stop) for name, buffer in memory.items()}
        last = len(ids[0]) - 1 if last is None else last
        for name, array in (
            (IDS, np.array(ids, np.int64)),
            (OFFSETS, np.array(offsets, np.int32)),
            (LAST, np.array([last], np.int64)),
        ):
            buffers[name] = self.device.allocate(TensorSpec(name, array.shape, array.dtype.name))
            buffers[name].array()[...] = array
            buffers[name].to_device()
        logits = self.device.allocate(TensorSpec(LOGITS, (len(ids), 1, self.vocabulary)))
        self.program.run({**buffers, LOGITS: logits})
        logits.to_host()
        return logits.array()[:, 0].copy()

    def read(self, memory: dict[str, Buffer], tokens: list[int], chunk: int, lane: int) -> Array:
        for start in range(0, len(tokens), chunk):
            logits = self.run(memory, [tokens[start : start + chunk]], [start], lane=lane)
        return logits[0]


def null_model(folder, layout: MemoryLayout) -> Model:
    listed = [(t.name, t.kind, t.shape, t.dtype) for t in layout.tensors]
    device = NullDevice()
    program = device.load(write_model(folder / "null.json", listed, vocabulary=500))
    return Model(device, program, layout, 500)


def xrt_model(folder, layout: MemoryLayout, **how: Any) -> Model:
    """The null device, in a process of its own."""
    listed = [(t.name, t.kind, t.shape, t.dtype) for t in layout.tensors]
    device = XrtDevice("npu-sim", command=STAND_IN, **how)
    program = device.load(write_model(folder / "null.json", listed, vocabulary=500))
    return Model(device, program, layout, 500)


def cpu_model(folder) -> Model:
    from flm.graph.weights.gguf import GgufFile

    source = GgufFile(FIXTURES / "llama" / "llama.Q4_K_M.gguf")
    graph = Graph(source, folder, int8_activations=True)
    return Model(graph.device, graph.program, graph.emitted.layout, graph.emitted.vocabulary)


def simulated_model(folder) -> Model:
    """Kernels in a simulator, behind pyxrt's stand-in, in a process: as `--device npu-sim`."""
    cpu = cpu_model(folder)
    device = XrtDevice("npu-sim", capacity=CAPACITY)
    program = device.load(folder / "graph.onnx")
    return Model(device, program, cpu.layout, cpu.vocabulary)


DEVICES = ["null", "null with state", "null in a process", "cpu"]


@pytest.fixture(scope="module", params=[*DEVICES, pytest.param("npu-sim", marks=needs_compiler)])
def model(request, tmp_path_factory) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp("model")
    if request.param == "cpu":
        model = cpu_model(folder)
    elif request.param == "npu-sim":
        model = simulated_model(folder)
    elif request.param == "null in a process":
        model = xrt_model(folder, MemoryLayout(ROWS + STATE))
    else:
        model = null_model(folder, MemoryLayout(ROWS + STATE * (request.param != "null")))
    yield model
    model.device.close()


def host(memory: dict[str, Buffer]) -> dict[str, Array]:
    for buffer in memory.values():
        buffer.to_host()
    return {name: buffer.array().copy() for name, buffer in memory.items()}


def assert_same(left: dict[str, Array], right: dict[str, Array]) -> None:
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_memory_starts_as_zero_in_the_shape_asked_for(model: Model) -> None:
    for name, buffer in model.memory().items():
        buffer.to_host()
        assert buffer.array().shape == buffer.spec.shape, name
        assert buffer.array().dtype == np.dtype(buffer.spec.dtype), name
        assert not buffer.array().any(), name


def test_a_part_is_one_object_and_shares_its_whole_s_memory(model: Model) -> None:
    for buffer in model.memory().values():
        part = buffer.part(1, 3)
        assert part is buffer.part(1, 3)
        assert part.spec.shape == (2, *buffer.spec.shape[1:])
        part.array()[1] = 1
        part.to_device()
        buffer.to_host()
        assert (buffer.array()[2] == 1).all()
        assert not buffer.array()[:2].any()


def test_a_program_names_its_memory_in_and_out(model: Model) -> None:
    names = {tensor.name for tensor in model.layout.tensors}
    assert set(model.program.inputs) == names | {IDS, OFFSETS, LAST}
    assert set(model.program.outputs) == {name + OUT for name in names} | {LOGITS}


def test_a_pass_writes_the_rows_of_its_tokens_and_nothing_else(model: Model) -> None:
    memory = model.memory()
    model.run(memory, [TOKENS[:5]], [0], lane=1)
    before = host(memory)
    model.run(memory, [TOKENS[5:8]], [5], lane=1)
    after = host(memory)
    for tensor in model.layout.rows:
        changed = (before[tensor.name] != after[tensor.name]).any(axis=(1, 3))  # [lanes, capacity]
        assert np.argwhere(changed).tolist() == [[1, 5], [1, 6], [1, 7]], tensor.name


def test_any_chunks_of_two_or_more_give_the_same_bits(model: Model) -> None:
    whole = model.memory()
    expected = model.read(whole, TOKENS[:22], 22, lane=0)
    for chunk in (2, 4, 10):
        cut = model.memory()
        np.testing.assert_array_equal(model.read(cut, TOKENS[:22], chunk, lane=0), expected)
        assert_same(host(whole), host(cut))


def test_a_lone_token_run_twice_gives_the_same_bits(model: Model) -> None:
    if model.layout.state:
        pytest.skip("a state would see it twice")
    whole, cut = model.memory(), model.memory()
    expected = model.read(whole, TOKENS, len(TOKENS), lane=0)
    model.read(cut, TOKENS[:-1], 11, lane=0)
    end = len(TOKENS) - 1
    found = model.run(cut, [[TOKENS[-1], TOKENS[-1]]], [end], last=0)
    np.testing.assert_array_equal(found[0], expected)
    left, right = host(whole), host(cut)
    for tensor in model.layout.rows:
        np.testing.assert_array_equal(
            left[tensor.name][:, :, : end + 1], right[tensor.name][:, :, : end + 1]
        )


def decoded(model: Model, lanes: range) -> tuple[Array, dict[str, Array]]:
    """Logits and memory of `lanes` after each decoded a token, all in one pass."""
    memory, ids, offsets = model.memory(), [[5], [6], [7]], [7, 12, 3]
    for lane, length in enumerate(offsets):
        model.read(memory, TOKENS[:length], 30, lane=lane)
    part = slice(lanes.start, lanes.stop)
    logits = model.run(memory, ids[part], offsets[part], lane=lanes.start)
    return logits, {name: array[part] for name, array in host(memory).items()}


def test_a_lane_s_bits_are_the_same_whoever_decodes_beside_it(model: Model) -> None:
    logits, memory = decoded(model, range(3))
    passes = [range(2), range(1, 3)]
    if model.device.name != "cpu" or lone_row_alike():
        passes += [range(lane, lane + 1) for lane in range(3)]
    for lanes in passes:
        part = slice(lanes.start, lanes.stop)
        fewer, fewer_memory = decoded(model, lanes)
        np.testing.assert_array_equal(fewer, logits[part])
        assert_same(fewer_memory, {name: array[part] for name, array in memory.items()})


def test_a_lane_alone_gives_the_same_bits_in_any_lane(model: Model) -> None:
    memory = model.memory()
    for lane in (0, 2):
        model.read(memory, TOKENS[:9], 30, lane=lane)
    first, last = (model.run(memory, [[5]], [9], lane=lane) for lane in (0, 2))
    np.testing.assert_array_equal(first, last)
    held = host(memory)
    assert_same(*({name: array[lane] for name, array in held.items()} for lane in (0, 2)))


def test_memory_carried_over_the_host_goes_on_as_if_it_had_stayed(model: Model) -> None:
    memory = model.memory()
    model.read(memory, TOKENS[:12], 12, lane=0)
    for tensor in model.layout.tensors:
        source, target = memory[tensor.name].part(0, 1), memory[tensor.name].part(2, 3)
        rows = range(12) if tensor.kind is MemoryKind.ROWS else None
        source.to_host(rows)
        held = source.array()[:, :, :12] if rows else source.array()
        (target.array()[:, :, :12] if rows else target.array())[...] = held
        target.to_device(rows)
    stayed = model.run(memory, [TOKENS[12:20]], [12], lane=0)
    carried = model.run(memory, [TOKENS[12:20]], [12], lane=2)
    np.testing.assert_array_equal(stayed, carried)


def test_a_cancel_between_passes_ends_none(model: Model) -> None:
    memory = model.memory()
    model.program.cancel()
    expected = model.run(memory, [TOKENS[:4]], [0])
    model.program.cancel()
    np.testing.assert_array_equal(model.run(memory, [TOKENS[:4]], [0], lane=1), expected)

"""A tiny Qwen3.5 on a simulated NPU: states and rows in kernels' layouts, and the CPU's logits."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flm.devices.xrt.graph import read
from flm.devices.xrt.plan import plan_of
from flm.graph.weights.gguf import GgufFile
from npu_kernels import fakexrt
from tests.devices.local import CAPACITY, LocalModel, round_scales
from tests.kernels.host import needs_compiler
from tests.models.drive import FIXTURES, Graph

FOLDER = FIXTURES / "qwen35_k4v8"
IDS = np.load(FOLDER / "expected.npz")["ids"]
FUNCTIONS = {
    *("QLinear", "QLinearMin", "RMSNorm", "AddRMSNorm", "HeadNorm", "SwiGLU", "Attention", "Gate"),
    *("CausalConvSilu", "GatedDelta", "GatedRMSNorm"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("qwen35")


@pytest.fixture(scope="module")
def graph(folder: Path) -> Graph:
    graph = Graph(GgufFile(FOLDER / "qwen35_k4v8.Q4_K_M.gguf"), folder, capacity=CAPACITY)
    round_scales(folder)
    graph.program = graph.device.load(folder / "graph.onnx")
    return graph


@pytest.fixture(scope="module")
def model(graph: Graph, folder: Path) -> Iterator[LocalModel]:
    before = fakexrt.current()
    fakexrt.use(fakexrt.Machine())
    model = LocalModel(graph, folder)
    yield model
    model.device.close()
    fakexrt.use(before)


def test_every_function_of_a_layer_has_a_kernel(graph: Graph, folder: Path) -> None:
    plan = plan_of(read(folder / "graph.onnx", CAPACITY))
    assert {dispatch.function for dispatch in plan.dispatches} == FUNCTIONS
    names = {name for memory in plan.memory for name in memory.names}
    assert names == {tensor.name for tensor in graph.emitted.layout.tensors}


@needs_compiler
def test_decode_gives_the_cpu_s_logits(model: LocalModel) -> None:
    model.decodes(IDS, 14, 3)


@needs_compiler
@pytest.mark.slow
def test_64_tokens_give_the_cpu_s_logits(model: LocalModel) -> None:
    model.decodes(IDS, 8, 64)


@needs_compiler
def test_a_state_carried_over_the_host_goes_on_as_if_it_had_stayed(
    graph: Graph, model: LocalModel
) -> None:
    tensors = graph.emitted.layout.tensors
    for tensor in tensors:
        model.memory[tensor.name].array()[...] = 0
        model.memory[tensor.name].to_device()
    model.run(IDS[:12], 0)
    model.run([IDS[12]], 12)
    held = {}
    for tensor in tensors:
        model.memory[tensor.name].to_host()
        held[tensor.name] = model.memory[tensor.name].array().copy()
    wanted = model.run([IDS[13]], 13)
    for tensor in tensors:
        model.memory[tensor.name].array()[...] = held[tensor.name]
        model.memory[tensor.name].to_device()
    np.testing.assert_array_equal(model.run([IDS[13]], 13), wanted)

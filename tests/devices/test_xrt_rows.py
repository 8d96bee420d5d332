"""Rows seen through a window (a tiny Gemma 3), and rows in float16, on a simulated NPU."""

from pathlib import Path

import numpy as np
import pytest

from flm.devices.xrt.graph import read
from flm.devices.xrt.plan import plan_of
from flm.graph.weights.gguf import GgufFile
from npu_kernels import fakexrt
from tests.devices.local import CAPACITY, LocalModel
from tests.kernels.host import needs_compiler
from tests.models.drive import FIXTURES, Graph, unpacked

pytestmark = needs_compiler


@pytest.mark.parametrize(
    ("name", "file", "row_dtype", "windows"),
    [
        pytest.param("gemma3", "gemma3.Q4_0.gguf", "float32", {0, 32}, id="a window"),
        pytest.param("llama", "llama.Q4_K_M.gguf", "float16", {0}, id="float16"),
    ],
)
def test_decode_gives_the_cpu_s_logits(
    name: str, file: str, row_dtype: str, windows: set[int], tmp_path: Path
) -> None:
    folder = FIXTURES / name
    source = folder / file if (folder / file).exists() else unpacked(folder / file, tmp_path)
    graph = Graph(GgufFile(source), tmp_path, row_dtype=row_dtype, capacity=CAPACITY)
    plan = plan_of(read(tmp_path / "graph.onnx", CAPACITY))
    attending = [each.binding for each in plan.dispatches if "Attention" in each.function]
    assert {each.parameters["WINDOW"] for each in attending} == windows
    before = fakexrt.current()
    fakexrt.use(fakexrt.Machine())
    model = LocalModel(graph, tmp_path)
    model.decodes(np.load(folder / "expected.npz")["ids"], 40, 3)
    model.device.close()
    fakexrt.use(before)

"""Llama as it is published; what all families of rows share is in test_families."""

from pathlib import Path

import numpy as np

from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from tests.models.drive import FIXTURES, Graph, kl
from tests.models.rewritten import bfloat16, floats, published

FOLDER = FIXTURES / "llama"
EXPECTED = np.load(FOLDER / "expected.npz")
IDS = EXPECTED["ids"]


FILE = GgufFile(FOLDER / "llama.Q4_K_M.gguf")
CONFIG = FOLDER / "hf" / "config.json"


def test_bfloat16_is_read_as_the_floats_it_stands_for(tmp_path: Path) -> None:
    halves = {name: bfloat16(array).astype(np.uint32) for name, array in floats(FILE).items()}
    values = {name: (array << 16).view(np.float32) for name, array in halves.items()}
    folders = (
        published(FILE, CONFIG, tmp_path / "bf16", dtype="BF16"),
        published(FILE, CONFIG, tmp_path / "f32", values),
    )
    graphs = (Graph(SafetensorsFolder(folder, quantized=False), folder) for folder in folders)
    first, second = (graph.read(IDS, [len(IDS)]) for graph in graphs)
    np.testing.assert_array_equal(first, second)
    assert kl(EXPECTED["Q4_K_M.exact.rows"][-1], first) < 0.05


def test_safetensors_quantised_at_import_stay_close(tmp_path: Path) -> None:
    graph = Graph(SafetensorsFolder(published(FILE, CONFIG, tmp_path / "hf")), tmp_path)
    rows = zip(EXPECTED["fixed_rows"], EXPECTED["Q4_K_M.exact.rows"], strict=True)
    divergences = [kl(wanted, graph.read(IDS[: p + 1], [p + 1])) for p, wanted in rows]
    assert np.mean(divergences) < 0.02  # at 4 bits 0.22

"""Llama as it is published; what all families of rows share is in test_families."""

from pathlib import Path

import numpy as np
import pytest

from flm.graph.weights.safetensors import SafetensorsFolder
from tests.models.drive import FIXTURES, Graph, assert_parity, kl, unpacked

FOLDER = FIXTURES / "llama"
EXPECTED = np.load(FOLDER / "expected.npz")
IDS = EXPECTED["ids"]


@pytest.fixture
def hf_folder(tmp_path: Path) -> Path:
    (tmp_path / "hf").mkdir()
    unpacked(FOLDER / "hf" / "model.safetensors", tmp_path / "hf")
    (tmp_path / "hf/config.json").write_bytes((FOLDER / "hf/config.json").read_bytes())
    return tmp_path / "hf"


def test_unquantised_safetensors_equal_transformers(hf_folder: Path, tmp_path: Path) -> None:
    graph = Graph(SafetensorsFolder(hf_folder, quantized=False), tmp_path)
    assert_parity(graph, EXPECTED, "hf")


def test_safetensors_quantised_at_import_stay_close(hf_folder: Path, tmp_path: Path) -> None:
    graph = Graph(SafetensorsFolder(hf_folder), tmp_path)
    for position, wanted in zip(EXPECTED["fixed_rows"], EXPECTED["hf.rows"], strict=True):
        got = graph.read(IDS[: position + 1], [position + 1])
        assert kl(wanted, got) < 5e-3

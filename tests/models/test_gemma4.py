"""Gemma 4's layers that share rows and its embeddings by layer: stored once, and small."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from flm.errors import UnsupportedModel
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from tests.models.drive import FIXTURES, Graph, assert_parity, unpacked
from tests.models.rewritten import float_gguf, floats, published_name, write_safetensors

HERE = FIXTURES / "gemma4"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    return GgufFile(unpacked(HERE / "gemma4.Q4_0.gguf", tmp_path_factory.mktemp("gemma4")))


def test_rows_are_stored_once(file: GgufFile, tmp_path: Path) -> None:
    graph = Graph(file, tmp_path)
    widths = {tensor.name: tensor.shape for tensor in graph.emitted.layout.rows}
    assert widths == {
        f"layers.{layer}.{part}": (1, width)
        for layer, width in enumerate((32, 32, 64))  # of six layers
        for part in ("key", "value")
    }


def test_embeddings_by_layer_stay_as_small_as_in_the_file(file: GgufFile, tmp_path: Path) -> None:
    Graph(file, tmp_path)
    model = onnx.load(tmp_path / "graph.onnx", load_external_data=False)
    sizes = {
        weight.name: int(entry.value)
        for weight in model.graph.initializer
        for entry in weight.external_data
        if entry.key == "length" and weight.name.startswith("per_layer_token_embd")
    }
    rows, columns = file.tensors["per_layer_token_embd.weight"].shape
    assert sum(sizes.values()) == rows * columns * (4 + 32 / 32) / 8  # four bits and a scale


def test_a_folder_that_also_sees_and_hears_equals_transformers_on_text(
    file: GgufFile, tmp_path: Path
) -> None:
    """What towers and the last layers' unused keys and values bring is read past."""
    prefix = "model.language_model."
    tensors = {
        published_name("gemma4", name).replace("model.", prefix, 1): array
        for name, array in floats(file).items()
        if not name.startswith("rope_")
    }
    unused = np.full((2, 2), np.nan, np.float32)
    tensors |= {f"{prefix}layers.5.self_attn.k_proj.weight": unused}
    tensors |= {f"model.{tower}_tower.proj.weight": unused for tower in ("vision", "audio")}
    folder = tmp_path / "hf"
    folder.mkdir()
    text = json.loads((HERE / "hf" / "config.json").read_text())
    whole = {"model_type": "gemma4", "text_config": text, "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(whole))
    write_safetensors(folder / "model.safetensors", tensors)
    graph = Graph(SafetensorsFolder(folder, quantized=False), tmp_path)
    assert_parity(graph, np.load(HERE / "expected.npz"), "Q4_0.exact")


def test_a_kind_without_embeddings_by_layer_is_refused(file: GgufFile, tmp_path: Path) -> None:
    key = "gemma4.embedding_length_per_layer_input"
    other = float_gguf(file, tmp_path / "other.gguf", {key: 0})
    with pytest.raises(UnsupportedModel, match="without embeddings by layer"):
        Graph(GgufFile(other), tmp_path)

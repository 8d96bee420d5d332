"""Gemma 3's checkpoints that also see: an older config.json around the text, prefixed names."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from tests.models.drive import FIXTURES, Graph, assert_parity, unpacked
from tests.models.rewritten import published


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_a_folder_with_pictures_equals_transformers_on_text(prefix: str, tmp_path: Path) -> None:
    file = GgufFile(unpacked(FIXTURES / "gemma3" / "gemma3.Q4_0.gguf", tmp_path))
    folder = published(file, FIXTURES / "gemma3" / "hf" / "config.json", tmp_path / "hf")
    text = json.loads((folder / "config.json").read_text())
    # What transformers' defaults say, or said under another name.
    for name in ("rope_parameters", "layer_types", "_sliding_window_pattern", "rms_norm_eps"):
        del text[name]
    text |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6}
    whole = {"model_type": "gemma3", "text_config": text}
    (folder / "config.json").write_text(json.dumps(whole))
    _rename(folder / "model.safetensors", prefix)
    source = SafetensorsFolder(folder, quantized=False)
    assert_parity(
        Graph(source, tmp_path), np.load(FIXTURES / "gemma3" / "expected.npz"), "Q4_0.exact"
    )


def _rename(path: Path, prefix: str) -> None:
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = data[8 : 8 + size].replace(b'"model.', f'"{prefix}'.encode())
    path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])

"""Files that are well formed and lie: told when they are compiled, not in every reply."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flm.errors import BadModelFile
from flm.graph.weights.gguf import GgufFile
from flm.models.compile import prepare
from tests.models.drive import FIXTURES
from tests.models.gguf_writer import tiny_llama
from tests.models.rewritten import published


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Hugging Face folder that compiles."""
    llama = FIXTURES / "llama"
    file, config = GgufFile(llama / "llama.Q4_K_M.gguf"), llama / "hf" / "config.json"
    return published(file, config, tmp_path / "hf", dtype="BF16")


def test_weights_that_are_not_numbers_are_named(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "tiny.gguf")
    whole = bytearray(source.read_bytes())
    whole[-4:] = np.float32(np.nan).tobytes()
    source.write_bytes(whole)
    with pytest.raises(BadModelFile, match=r"blk\.1\.ffn_down\.weight .* not numbers"):
        prepare(source, tmp_path / "bundle")


@pytest.mark.parametrize("value", [b"\xff\xff", b"\x80\x7f"])  # NaN and infinity in bfloat16
def test_weights_to_quantise_that_are_not_numbers_are_named(
    folder: Path, tmp_path: Path, value: bytes
) -> None:
    file = folder / "model.safetensors"
    whole = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(whole[:8], "little")
    whole[start : start + 2] = value
    file.write_bytes(whole)
    with pytest.raises(BadModelFile, match="not numbers"):
        prepare(folder, tmp_path / "bundle")


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear"},
        {"rope_type": "linear", "factor": "x"},
        {"rope_type": "linear", "factor": 0},
        {"rope_type": "linear", "factor": -1},
        {"rope_type": "llama3", "factor": 8.0},
        {
            "rope_type": "llama3",
            "factor": 0,
            "original_max_position_embeddings": 1,
            "low_freq_factor": 1,
            "high_freq_factor": 1,
        },
    ],
)
def test_a_rope_scaling_that_scales_to_nothing_is_refused(
    folder: Path, tmp_path: Path, rope: dict[str, Any]
) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = rope
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadModelFile, match="rope scaling"):
        prepare(folder, tmp_path / "bundle")


def test_a_file_that_cannot_be_read_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").symlink_to("tokenizer.json")
    with pytest.raises(BadModelFile, match="cannot be read"):
        prepare(folder, tmp_path / "bundle")

"""FastFlowLM's tiles are read exactly as its converter is published to write them."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from flm.errors import BadModelFile, UnsupportedModel
from flm.graph.weights.q4nx import Q4nxFolder
from flm.models.compile import prepare
from flm.models.family import open_source

RANDOM = np.random.default_rng(4)
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
}
VOCABULARY = 64
LAYER = "model.layers.0."
MATRICES = {
    "lm_head": (VOCABULARY, 128),
    LAYER + "self_attn.q_proj": (128, 128),
    LAYER + "self_attn.k_proj": (64, 128),
    LAYER + "self_attn.v_proj": (64, 128),
    LAYER + "self_attn.o_proj": (128, 128),
    LAYER + "mlp.gate_proj": (320, 128),
    LAYER + "mlp.up_proj": (320, 128),
    LAYER + "mlp.down_proj": (128, 320),
}
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


def bfloat16(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(its 16 bits, what they stand for), cut off."""
    bits = np.asarray(values, np.float32).view(np.uint32) >> 16
    return bits.astype(np.uint16), (bits << 16).astype(np.uint32).view(np.float32)


def tiled(rows: int, columns: int, *, signed: bool) -> tuple[bytes, int, np.ndarray]:
    """Tiles number by number, how many, and the weights [rows, columns] they hold."""
    weights = np.zeros((rows, columns), np.float32)
    tiles = []
    for top in range(0, rows, 32):
        for left in range(0, columns, 256):
            scales, d = bfloat16(RANDOM.normal(size=(8, 32)))
            minimum, m = bfloat16(np.zeros((8, 32)) if signed else RANDOM.normal(size=(8, 32)))
            codes = RANDOM.integers(0, 16, (32, 256))
            nibbles = np.zeros(8192, np.uint8)
            for row in range(32):
                for column in range(256):
                    code = codes[row, column]
                    nibbles[row // 16 * 4096 + column * 16 + row % 16] = code
                    if left + column < columns:
                        value = code - 16 * (code > 7) if signed else code
                        block = column // 32
                        weights[top + row, left + column] = d[block, row] * value + m[block, row]
            packed = nibbles[0::2] | nibbles[1::2] << 4
            tiles.append(scales.tobytes() + minimum.tobytes() + packed.tobytes())
    return b"".join(tiles), len(tiles), weights


def write(folder: Path, tensors: Tensors, **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        offsets = [at, at := at + len(data)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    start = json.dumps(header).encode()
    body = b"".join(data for _, _, data in tensors.values())
    (folder / "model.q4nx").write_bytes(struct.pack("<Q", len(start)) + start + body)
    return folder


@pytest.mark.parametrize("signed", [False, True], ids=["minimums", "signed"])
@pytest.mark.parametrize("deep", [False, True], ids=["flat", "by rows of tiles"])
def test_tiles_hold_exactly_these_weights(signed: bool, deep: bool, tmp_path: Path) -> None:
    tensors, wanted = {}, {}
    for name, (rows, columns) in MATRICES.items():
        data, count, wanted[name] = tiled(rows, columns, signed=signed)
        shape = (rows // 32, count * 32 // rows, 5120) if deep else (count, 5120)
        tensors[f"{name}.weight"] = ("I8", shape, data)
    source = open_source(write(tmp_path / "m", tensors))
    assert isinstance(source, Q4nxFolder)
    for name, weights in wanted.items():
        matrix = source.matrix(f"{name}.weight")
        assert matrix.shape == weights.shape
        assert matrix.format is not None
        assert matrix.format.minimum is not signed
        rows = RANDOM.permutation(len(weights))[:50]
        np.testing.assert_allclose(matrix.read_dense(rows), weights[rows], rtol=1e-6, atol=1e-6)


def whole(folder: Path) -> Path:
    """A model that compiles: embedding and norms are bfloat16."""
    tensors: Tensors = {}
    for name, (rows, columns) in MATRICES.items():
        data, count, _ = tiled(rows, columns, signed=False)
        tensors[f"{name}.weight"] = ("I8", (count, 5120), data)
    floats = {
        "model.embed_tokens.weight": (VOCABULARY, 128),
        "model.norm.weight": (128,),
        LAYER + "input_layernorm.weight": (128,),
        LAYER + "post_attention_layernorm.weight": (128,),
    }
    for name, shape in floats.items():
        tensors[name] = ("BF16", shape, bfloat16(RANDOM.normal(size=shape))[0].tobytes())
    return write(folder, tensors)


def test_a_folder_of_fastflowlms_compiles(tmp_path: Path) -> None:
    source = whole(tmp_path / "m")
    bundle = prepare(source, tmp_path / "bundle")
    assert (bundle.family, bundle.vocabulary) == ("llama", VOCABULARY)
    weights = source / "model.q4nx"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    assert prepare(source, tmp_path / "bundle").key != bundle.key


def test_what_is_not_known_to_be_read_rightly_is_refused(tmp_path: Path) -> None:
    tensor: Tensors = {"lm_head.weight": ("I8", (2, 9216), bytes(2 * 9216))}
    with pytest.raises(UnsupportedModel, match="qwen3_5") as caught:
        open_source(write(tmp_path / "family", tensor, model_type="qwen3_5"))
    assert "GGUF" in caught.value.fix
    with pytest.raises(UnsupportedModel, match=r"lm_head.*tiles"):
        open_source(write(tmp_path / "eight", tensor)).matrix("lm_head.weight")
    turned: Tensors = {"rope_freqs.weight": ("BF16", (4,), bytes(8))}
    with pytest.raises(BadModelFile, match="rope_scaling"):
        open_source(write(tmp_path / "turned", turned))

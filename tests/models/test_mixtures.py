"""Mixtures of experts give transformers' logits, and any chunking gives the same memory."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flm.errors import BadModelFile
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from flm.models.gptoss import graph as gptoss
from tests.models.drive import (
    FIXTURES,
    Graph,
    assert_alike_beside_others,
    assert_parity,
    kl,
    unpacked,
)
from tests.models.rewritten import PUBLISHED, float_gguf, floats, published, write_safetensors

TYPES = {"qwen35moe": "Q4_0", "gptoss": "MXFP4_MOE"}


@dataclass(frozen=True, slots=True)
class Mixture:
    kind: str
    file: GgufFile
    expected: Any
    served: Graph  # int8 activations, three lanes

    @property
    def ids(self) -> np.ndarray:
        return self.expected["ids"]


@pytest.fixture(scope="module", params=TYPES)
def mixture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mixture:
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    file = GgufFile(unpacked(FIXTURES / name / f"{name}.{TYPES[name]}.gguf", folder))
    expected = np.load(FIXTURES / name / "expected.npz")
    served = Graph(file, folder, int8_activations=True, lanes=3)
    return Mixture(TYPES[name] + ".exact", file, expected, served)


@pytest.fixture
def as_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the expected logits were made: in float32, which onnxruntime takes for experts of 8 bits
    only if told so; and with GPT-OSS's ramp truncated, as llama.cpp has it.
    """
    monkeypatch.setenv("ORT_QMOE_CPU_QNBIT_GEMM", "fp32")
    monkeypatch.setattr(gptoss, "TRUNCATE", True)


@pytest.mark.usefixtures("as_expected")
def test_a_quantised_file_equals_transformers(mixture: Mixture, tmp_path: Path) -> None:
    assert_parity(Graph(mixture.file, tmp_path), mixture.expected, mixture.kind)


@pytest.mark.usefixtures("as_expected")
def test_a_float_file_equals_transformers(mixture: Mixture, tmp_path: Path) -> None:
    source = GgufFile(float_gguf(mixture.file, tmp_path / "float.gguf"))
    assert_parity(Graph(source, tmp_path), mixture.expected, mixture.kind)


@pytest.mark.usefixtures("as_expected")
def test_float16_rows_stay_close(mixture: Mixture, tmp_path: Path) -> None:
    graph = Graph(mixture.file, tmp_path, row_dtype="float16")
    got = graph.read(mixture.ids, [96])
    assert kl(mixture.expected[f"{mixture.kind}.rows"][-1], got) < 1e-4


def memory(graph: Graph, count: int) -> dict[str, np.ndarray]:
    """Rows of the first `count` tokens, and state, of lane 0."""
    rows = {"key", "value"}
    return {
        name: buffer.array()[0][:, :count].copy()
        if name.rsplit(".", 1)[-1] in rows
        else buffer.array()[0].copy()
        for name, buffer in graph.memory.items()
    }


def test_any_chunking_gives_the_same_logits_and_memory(mixture: Mixture) -> None:
    graph, ids = mixture.served, mixture.ids
    wanted = graph.read(ids, [len(ids)])
    kept = memory(graph, len(ids))
    for chunks in ([2] * 48, [94, 2], [2, 94], [3] * 32, [31, 33, 32]):
        for buffer in graph.memory.values():
            buffer.array()[0] = 0
        assert np.array_equal(graph.read(ids, chunks), wanted)
        for name, array in memory(graph, len(ids)).items():
            assert np.array_equal(array, kept[name]), name


def test_memory_put_back_goes_on_as_if_nothing_had_come_between(mixture: Mixture) -> None:
    graph, ids = mixture.served, mixture.ids
    graph.run(ids[:60], 0)
    kept = {name: buffer.array()[0].copy() for name, buffer in graph.memory.items()}
    wanted = graph.run(ids[60:80], 60)
    graph.run(ids[::-1], 0)
    for name, buffer in graph.memory.items():
        buffer.array()[0] = kept[name]
    assert np.array_equal(graph.run(ids[60:80], 60), wanted)


def test_ragged_batched_decode_gives_a_lane_the_same_bits_beside_others(mixture: Mixture) -> None:
    assert_alike_beside_others(mixture.served, mixture.ids, [40, 17, 63])


@pytest.mark.parametrize(
    ("key", "item", "word"),
    [("expert_used_count", 9, "9 experts of 8"), ("expert_count", 0, "experts")],
)
def test_a_number_that_cannot_be_is_named(
    mixture: Mixture, key: str, item: int, word: str, tmp_path: Path
) -> None:
    kind = mixture.file.text("general.architecture")
    broken = float_gguf(mixture.file, tmp_path / "broken.gguf", {f"{kind}.{key}": item})
    with pytest.raises(BadModelFile, match=word):
        Graph(GgufFile(broken), tmp_path)


def test_a_published_folder_of_experts_equals_transformers(tmp_path: Path) -> None:
    name = "qwen35moe"
    file = GgufFile(unpacked(FIXTURES / name / f"{name}.Q4_0.gguf", tmp_path))
    folder = published(file, FIXTURES / name / "hf" / "config.json", tmp_path / "hf")
    expected = np.load(FIXTURES / name / "expected.npz")
    graph = Graph(SafetensorsFolder(folder, quantized=False), tmp_path)
    assert_parity(graph, expected, "Q4_0.exact")


def test_gpt_oss_is_turned_as_published_not_as_llama_cpp_turns_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_QMOE_CPU_QNBIT_GEMM", "fp32")
    file = GgufFile(unpacked(FIXTURES / "gptoss" / "gptoss.MXFP4_MOE.gguf", tmp_path))
    expected = np.load(FIXTURES / "gptoss" / "expected.npz")
    wanted, theirs = (expected[f"MXFP4_MOE.{name}.rows"] for name in ("untruncated", "exact"))
    got = Graph(file, tmp_path).read(expected["ids"], [96])
    np.testing.assert_allclose(got, wanted[-1], atol=2e-4, rtol=0)
    assert kl(wanted[-1], theirs[-1]) > 0.1


def published_gpt_oss(file: GgufFile, folder: Path, *, truncate: bool) -> Path:
    """As its makers have it: MXFP4 in neighbouring nibbles, gate and up by turns."""
    folder.mkdir()
    read, tensors = floats(file), {}
    theirs = {
        **PUBLISHED,
        "post_attention_norm": PUBLISHED["ffn_norm"],
        "ffn_gate_inp": "mlp.router",
    }
    for name, array in read.items():
        *block, tensor, suffix = name.rsplit(".", 2)
        where = f"model.layers.{block[0].removeprefix('blk.')}." if block else ""
        if tensor == "attn_sinks":
            tensors[where + "self_attn.sinks"] = array
        elif "_exps" not in tensor:
            tensors[f"{where}{theirs[tensor]}.{suffix}"] = array
    for layer in range(4):

        def raw(name: str, layer: int = layer) -> np.ndarray:
            info = file.tensors[f"blk.{layer}.ffn_{name}_exps.weight"]
            data = np.fromfile(file.path, np.uint8, info.bytes, offset=info.start)
            return data.reshape(*info.shape[:2], -1, 17)

        def turns(values: dict[str, np.ndarray]) -> np.ndarray:
            both = np.stack([values["gate"], values["up"]], axis=2)
            return both.reshape(8, -1, *both.shape[3:])

        names = ("gate", "up", "down")
        blocks = {name: raw(name) for name in names}
        bias = {name: read[f"blk.{layer}.ffn_{name}_exps.bias"] for name in names}
        parts = {"gate_up_proj": (turns(blocks), turns(bias))}
        parts["down_proj"] = (blocks["down"], bias["down"])
        for name, (packed, biases) in parts.items():
            codes = np.concatenate([packed[..., 1:] & 15, packed[..., 1:] >> 4], axis=-1)
            place = f"model.layers.{layer}.mlp.experts.{name}"
            tensors[place + "_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
            tensors[place + "_scales"] = np.ascontiguousarray(packed[..., 0])
            tensors[place + "_bias"] = biases
    write_safetensors(folder / "model.safetensors", tensors)
    config = json.loads((FIXTURES / "gptoss" / "hf" / "config.json").read_text())
    config["rope_parameters"]["truncate"] = truncate
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_published_folder_of_mxfp4_equals_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_QMOE_CPU_QNBIT_GEMM", "fp32")
    file = GgufFile(unpacked(FIXTURES / "gptoss" / "gptoss.MXFP4_MOE.gguf", tmp_path))
    folder = published_gpt_oss(file, tmp_path / "hf", truncate=True)
    expected = np.load(FIXTURES / "gptoss" / "expected.npz")
    graph = Graph(SafetensorsFolder(folder, quantized=False), tmp_path)
    assert_parity(graph, expected, "MXFP4_MOE.exact")


def test_codes_without_their_exponents_are_refused(tmp_path: Path) -> None:
    name = "experts"
    blocks = np.zeros((2, 4, 1, 16), np.uint8)
    for scales in (np.zeros((2, 4, 2), np.uint8), np.zeros((2, 4, 1), np.float32)):
        write_safetensors(
            tmp_path / "m.safetensors", {name + "_blocks": blocks, name + "_scales": scales}
        )
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(BadModelFile, match="MXFP4"):
            SafetensorsFolder(tmp_path).matrix(name)

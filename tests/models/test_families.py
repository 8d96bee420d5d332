"""Families of rows alone give transformers' logits, by every way in and however they are driven."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flm.devices.cpu import CpuDevice
from flm.devices.device import Program
from flm.engine import residency
from flm.errors import BadModelFile
from flm.graph.bundle import Bundle
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from flm.models.cards import find
from flm.models.compile import compile_model
from flm.settings import Settings
from tests.models.drive import (
    FIXTURES,
    Graph,
    assert_alike_beside_others,
    assert_parity,
    kl,
    log_softmax,
    unpacked,
)
from tests.models.gguf_writer import LETTERS
from tests.models.rewritten import float_gguf, published

TYPES = {
    "llama": "Q4_K_M",
    "qwen2": "Q4_0",
    "qwen3": "Q4_0",
    "smollm3": "Q4_0",
    "granite": "Q4_0",
    "phi3": "Q4_K_M",
    "gemma3": "Q4_0",
    "gemma4": "Q4_0",
}
# Phi-3's expected logits are of a prompt within its original context.
CONTEXT_LENGTH = {"phi3": 512}


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    file: GgufFile
    expected: Any
    exact: Graph  # float32 activations; three lanes, as the next
    served: Graph  # int8 activations

    @property
    def kind(self) -> str:
        return TYPES[self.name] + ".exact"

    @property
    def context_length(self) -> int | None:
        return CONTEXT_LENGTH.get(self.name)


@pytest.fixture(scope="module", params=TYPES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    path = FIXTURES / name / f"{name}.{TYPES[name]}.gguf"
    file = GgufFile(path if path.exists() else unpacked(path, folder))
    graphs = []
    for int8_activations in (False, True):
        place = folder / f"{int8_activations}"
        place.mkdir()
        length = CONTEXT_LENGTH.get(name)
        graphs.append(
            Graph(file, place, int8_activations=int8_activations, lanes=3, context_length=length)
        )
    return Family(name, file, np.load(FIXTURES / name / "expected.npz"), *graphs)


def test_a_quantised_file_equals_transformers_on_its_weights(family: Family) -> None:
    assert_parity(family.exact, family.expected, family.kind)


def test_lanes_decoded_together_equal_transformers(family: Family) -> None:
    lengths, wanted = family.expected["fixed_rows"][-3:], family.expected[f"{family.kind}.rows"]
    got = family.exact.decode(family.expected["ids"], list(lengths), range(3))
    np.testing.assert_allclose(got, wanted[-3:], atol=2e-4, rtol=0)


def test_float16_rows_stay_close(family: Family, tmp_path: Path) -> None:
    graph = Graph(family.file, tmp_path, row_dtype="float16", context_length=family.context_length)
    got = graph.read(family.expected["ids"], [96])
    assert kl(family.expected[f"{family.kind}.rows"][-1], got) < 1e-4


def test_a_float_file_equals_transformers(family: Family, tmp_path: Path) -> None:
    source = GgufFile(float_gguf(family.file, tmp_path / "float.gguf"))
    graph = Graph(source, tmp_path, context_length=family.context_length)
    assert_parity(graph, family.expected, family.kind)


def test_a_published_folder_equals_transformers(family: Family, tmp_path: Path) -> None:
    config = FIXTURES / family.name / "hf" / "config.json"
    source = SafetensorsFolder(published(family.file, config, tmp_path / "hf"), quantized=False)
    graph = Graph(source, tmp_path, context_length=family.context_length)
    assert_parity(graph, family.expected, family.kind)


@pytest.mark.parametrize("which", ["exact", "served"])
def test_any_chunking_gives_the_same_logits_and_rows(family: Family, which: str) -> None:
    graph, ids = getattr(family, which), family.expected["ids"]
    wanted = graph.read(ids, [len(ids)])
    kept = rows(graph, len(ids))
    for chunks in ([2] * 48, [90, 6], [2, 94], [31, 33, 32], [3, 5, 7, 11, 70]):
        for buffer in graph.memory.values():
            buffer.array()[0] = 0
        assert np.array_equal(graph.read(ids, chunks), wanted)
        for name, array in rows(graph, len(ids)).items():
            assert np.array_equal(array, kept[name]), name


@pytest.mark.parametrize("which", ["exact", "served"])
def test_rows_put_back_are_gone_on_from_at_any_token(family: Family, which: str) -> None:
    graph, ids = getattr(family, which), family.expected["ids"]
    wanted = graph.read(ids, [len(ids)])
    kept = rows(graph, 60)
    for end in (60, 37, 2):
        graph.read(ids[::-1], [len(ids)])
        for name, buffer in graph.memory.items():
            buffer.array()[0, :, :end] = kept[name][:, :end]
        assert np.array_equal(graph.run(ids[end:], end)[0], wanted)


def test_ragged_batched_decode_gives_a_lane_the_same_bits_beside_others(family: Family) -> None:
    assert_alike_beside_others(family.served, family.expected["ids"], [40, 17, 63])


def rows(graph: Graph, count: int) -> dict[str, np.ndarray]:
    return {name: buffer.array()[0, :, :count].copy() for name, buffer in graph.memory.items()}


# What llama.cpp, all in float32, gives the best tokens after Qwen3's prompt: id, log-probability.
SCALED = [
    ({"type": "linear", "factor": 3.0}, {274: -0.6664, 507: -0.7213, 421: -8.6724}),
    (
        {"type": "yarn", "factor": 4.0, "original_context_length": 256},
        {1512: -0.1784, 1974: -2.0946, 915: -3.5689},
    ),
    (
        {"type": "yarn", "factor": 8.0, "original_context_length": 64, "attn_factor": 0.9},
        {1919: -0.6216, 507: -0.7772, 1733: -6.1969},
    ),
]


@pytest.mark.parametrize(("scaling", "wanted"), SCALED)
def test_scaled_positions_equal_llama_cpps(
    scaling: dict[str, object], wanted: dict[int, float], tmp_path: Path
) -> None:
    file = GgufFile(unpacked(FIXTURES / "qwen3" / "qwen3.Q4_0.gguf", tmp_path))
    changed = {f"qwen3.rope.scaling.{key}": item for key, item in scaling.items()}
    source = GgufFile(float_gguf(file, tmp_path / "scaled.gguf", changed))
    ids = np.load(FIXTURES / "qwen3" / "expected.npz")["ids"]
    got = log_softmax(Graph(source, tmp_path).read(ids, [len(ids)]))
    np.testing.assert_allclose(got[list(wanted)], list(wanted.values()), atol=2e-4, rtol=0)


@pytest.fixture(scope="module")
def phi3(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    return GgufFile(unpacked(FIXTURES / "phi3" / "phi3.Q4_K_M.gguf", tmp_path_factory.mktemp("p")))


def test_a_context_beyond_the_original_one_is_turned_by_the_long_factors(
    phi3: GgufFile, tmp_path: Path
) -> None:
    """With the two sets of factors swapped, the long one gives what the short one is known to."""
    short, long = (f"rope_factors_{name}.weight" for name in ("short", "long"))
    swapped = {short: long, long: short}
    source = GgufFile(float_gguf(phi3, tmp_path / "swapped.gguf", moved=swapped))
    expected = np.load(FIXTURES / "phi3" / "expected.npz")
    for context_length in (None, 513):
        folder = tmp_path / str(context_length)
        folder.mkdir()
        graph = Graph(source, folder, context_length=context_length)
        assert_parity(graph, expected, "Q4_K_M.exact")


@pytest.fixture(scope="module")
def phi3_bundle(phi3: GgufFile, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    letters = {
        **LETTERS,
        "tokenizer.ggml.tokens": [f"{i}" for i in range(2048)],
        "tokenizer.ggml.merges": ["1 2"],
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }
    folder = tmp_path_factory.mktemp("bundle")
    return compile_model(float_gguf(phi3, folder / "phi3.gguf", letters), folder / "b")


def test_a_bundle_has_a_graph_for_contexts_within_the_original_one(phi3_bundle: Bundle) -> None:
    long = phi3_bundle.folder / "graph.float32.onnx"
    short = phi3_bundle.folder / "graph.float32.short.onnx"
    assert phi3_bundle.context_length == 4096
    assert phi3_bundle.graph("float32", 512) == short
    assert phi3_bundle.graph("float32", 513) == phi3_bundle.graph("float32") == long
    assert short.exists()
    assert long.exists()


def test_loading_takes_the_graph_of_its_context_length(
    phi3_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, load = [], CpuDevice.load

    def noted(device: CpuDevice, graph: Path) -> Program:
        loaded.append(graph.name)
        return load(device, graph)

    monkeypatch.setattr(CpuDevice, "load", noted)
    card = find("phi4-mini-it:4b")
    for context_length in (512, 513):
        settings = Settings(ctx_len=context_length, kv_dtype="f32", prefix_cache_mb=1)
        residency.load(phi3_bundle, card, settings).close()
    assert loaded == ["graph.float32.short.onnx", "graph.float32.onnx"]


def test_a_device_whose_model_cannot_be_loaded_is_given_back(
    phi3_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(device: CpuDevice, graph: Path) -> Program:
        raise BadModelFile("told to")

    closed: list[CpuDevice] = []
    monkeypatch.setattr(CpuDevice, "load", fails)
    monkeypatch.setattr(CpuDevice, "close", lambda device: closed.append(device))
    with pytest.raises(BadModelFile):
        residency.load(phi3_bundle, find("phi4-mini-it:4b"), Settings(ctx_len=512))
    assert len(closed) == 1


def test_a_context_ends_where_attentions_window_would_cut_it(
    phi3: GgufFile, tmp_path: Path
) -> None:
    path = float_gguf(phi3, tmp_path / "w.gguf", {"phi3.attention.sliding_window": 1000})
    assert Graph(GgufFile(path), tmp_path).emitted.context_length == 1000


@pytest.mark.parametrize(
    ("changed", "length"),
    [
        ({"use_sliding_window": True, "sliding_window": 48, "layer_types": None}, 48),
        ({"use_sliding_window": True, "sliding_window": 48}, 1024),  # no layer has it
        ({"use_sliding_window": False, "sliding_window": 48, "layer_types": None}, 1024),
    ],
)
@pytest.mark.parametrize("name", ["qwen2", "qwen3", "smollm3"])
def test_a_window_counts_where_a_folder_says_that_it_is_used(
    name: str, changed: dict[str, object], length: int, tmp_path: Path
) -> None:
    file = GgufFile(unpacked(FIXTURES / name / f"{name}.Q4_0.gguf", tmp_path))
    folder = published(file, FIXTURES / name / "hf" / "config.json", tmp_path / "hf")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changed}))
    assert Graph(SafetensorsFolder(folder), tmp_path).emitted.context_length == length


@pytest.mark.parametrize(
    ("name", "key", "item", "word"),
    [
        ("granite", "granite.residual_scale", 0.0, "residual"),
        ("granite", "granite.logit_scale", float("inf"), "logit_scale"),
        ("granite", "granite.embedding_scale", -1.0, "embedding"),
        ("phi3", "phi3.rope.scaling.original_context_length", 0, "original context"),
        ("phi3", "phi3.rope.scaling.attn_factor", -1.0, "angles"),
        ("phi3", "phi3.attention.sliding_window", 2.5, "window"),
        ("qwen2", "qwen2.attention.sliding_window", 2.5, "window"),
        ("phi3", "phi3.rope.dimension_count", 50, "rope_factors"),
        ("gemma3", "gemma3.attention.sliding_window", 0, "window"),
        ("gemma3", "gemma3.rope.freq_base_swa", 0.5, "near_base"),
        ("gemma4", "gemma4.attention.shared_kv_layers", 5, "no layer stores"),
        ("gemma4", "gemma4.attention.shared_kv_layers", 6, "from layer 0 on"),
        ("gemma4", "gemma4.attention.sliding_window", 0, "window"),
        ("gemma4", "gemma4.feed_forward_length", [96, 96], "feed_forward_length"),
        ("gemma4", "gemma4.final_logit_softcapping", -1.0, "cap"),
    ],
)
def test_a_number_that_cannot_be_is_named(
    name: str, key: str, item: object, word: str, tmp_path: Path
) -> None:
    whole = GgufFile(unpacked(FIXTURES / name / f"{name}.{TYPES[name]}.gguf", tmp_path))
    broken = float_gguf(whole, tmp_path / "broken.gguf", {key: item})
    with pytest.raises(BadModelFile, match=word):
        Graph(GgufFile(broken), tmp_path)

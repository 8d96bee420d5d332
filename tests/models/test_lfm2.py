"""LFM2 graphs give transformers' logits, and any chunking gives the same rows and state."""

from pathlib import Path

import numpy as np
import pytest

from flm.core.tensor import MemoryKind
from flm.errors import BadModelFile
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from tests.models.drive import (
    FIXTURES,
    Graph,
    assert_alike_beside_others,
    assert_parity,
    unpacked,
)
from tests.models.rewritten import float_gguf, published

FOLDER = FIXTURES / "lfm2"
EXPECTED = np.load(FOLDER / "expected.npz")
IDS = EXPECTED["ids"]
KIND = "Q4_0.exact"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    return GgufFile(unpacked(FOLDER / "lfm2.Q4_0.gguf", tmp_path_factory.mktemp("lfm2")))


@pytest.fixture(scope="module", params=["exact", "served"])
def graph(
    request: pytest.FixtureRequest, file: GgufFile, tmp_path_factory: pytest.TempPathFactory
) -> Graph:
    folder = tmp_path_factory.mktemp(request.param)
    return Graph(file, folder, int8_activations=request.param == "served", lanes=3)


def test_a_quantised_file_equals_transformers_on_its_weights(
    file: GgufFile, tmp_path: Path
) -> None:
    assert_parity(Graph(file, tmp_path), EXPECTED, KIND)


def test_a_published_folder_equals_transformers(file: GgufFile, tmp_path: Path) -> None:
    folder = published(file, FOLDER / "hf" / "config.json", tmp_path / "hf")
    assert_parity(Graph(SafetensorsFolder(folder, quantized=False), tmp_path), EXPECTED, KIND)


def test_convolutions_are_state_and_attention_is_rows(graph: Graph) -> None:
    kinds = {tensor.name: tensor.kind for tensor in graph.emitted.layout.tensors}
    states = [f"layers.{i}.convolution" for i in (0, 1, 3)]
    rows = [f"layers.{i}.{part}" for i in (2, 4) for part in ("key", "value")]
    assert kinds == {
        **dict.fromkeys(states, MemoryKind.STATE),
        **dict.fromkeys(rows, MemoryKind.ROWS),
    }


def memory(graph: Graph) -> dict[str, np.ndarray]:
    return {name: buffer.array()[0].copy() for name, buffer in graph.memory.items()}


def test_any_chunking_gives_the_same_logits_rows_and_state(graph: Graph) -> None:
    wanted = graph.read(IDS, [len(IDS)])
    kept = memory(graph)
    for chunks in ([2] * 48, [94, 2], [2, 94], [3] * 32, [30, 2, 64]):
        for buffer in graph.memory.values():
            buffer.array()[0] = 0
        assert np.array_equal(graph.read(IDS, chunks), wanted)
        for name, array in memory(graph).items():
            rows = slice(None) if name.endswith("convolution") else (slice(None), slice(len(IDS)))
            assert np.array_equal(array[rows], kept[name][rows]), name


def test_a_state_put_back_goes_on_as_if_nothing_had_come_between(graph: Graph) -> None:
    graph.run(IDS[:60], 0)
    kept = memory(graph)
    wanted = graph.run(IDS[60:80], 60)
    graph.run(IDS[::-1], 0)
    for name, buffer in graph.memory.items():
        buffer.array()[0] = kept[name]
    assert np.array_equal(graph.run(IDS[60:80], 60), wanted)


@pytest.mark.parametrize("graph", ["served"], indirect=True)
def test_ragged_batched_decode_gives_a_lane_the_same_bits_beside_others(graph: Graph) -> None:
    assert_alike_beside_others(graph, IDS, [40, 17, 63])


@pytest.mark.parametrize(
    ("key", "item", "word"),
    [
        ("attention.head_count_kv", [0, 0, 2, 0, 4], "kv heads"),
        ("attention.head_count_kv", [0, 0, 2, 2], "kinds of 4"),
        ("attention.head_count_kv", 2, "kinds of 0"),
        ("shortconv.l_cache", 1, "1 taps"),
        ("shortconv.l_cache", 4, "conv.weight"),
    ],
)
def test_a_number_that_cannot_be_is_named(
    file: GgufFile, key: str, item: object, word: str, tmp_path: Path
) -> None:
    broken = float_gguf(file, tmp_path / "broken.gguf", {f"lfm2.{key}": item})
    with pytest.raises(BadModelFile, match=word):
        Graph(GgufFile(broken), tmp_path)

"""Qwen3.5 graphs give transformers' logits, and any chunking gives the same rows and state."""

from pathlib import Path

import numpy as np
import pytest

from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from tests.models.drive import FIXTURES, Graph, assert_alike_beside_others, assert_parity
from tests.models.rewritten import published

# Eight value heads over four key heads: the one that catches heads put in the wrong order.
K4V8 = FIXTURES / "qwen35_k4v8"
# As published: a picture tower and a layer for predicting ahead stand beside the text part.
R1 = FIXTURES / "qwen35_r1"
EXPECTED = np.load(K4V8 / "expected.npz")
IDS = EXPECTED["ids"]


def test_k_quants_equal_transformers_with_value_heads_in_order(tmp_path: Path) -> None:
    source = GgufFile(K4V8 / "qwen35_k4v8.Q4_K_M.gguf")
    assert_parity(Graph(source, tmp_path), EXPECTED, "Q4_K_M.exact")


def test_layers_that_predict_ahead_are_read_past(tmp_path: Path) -> None:
    graph = Graph(GgufFile(R1 / "qwen35_r1.Q4_1.gguf"), tmp_path)
    assert_parity(graph, np.load(R1 / "expected.npz"), "Q4_1.exact")


@pytest.mark.parametrize(("folder", "kind"), [(R1, "Q4_1"), (K4V8, "Q4_K_M")])
def test_published_checkpoints_equal_transformers(folder: Path, kind: str, tmp_path: Path) -> None:
    file = GgufFile(folder / f"{folder.name}.{kind}.gguf")
    theirs = published(file, folder / "hf" / "config.json", tmp_path / "hf")
    source = SafetensorsFolder(theirs, quantized=False)
    assert_parity(Graph(source, tmp_path), np.load(folder / "expected.npz"), f"{kind}.exact")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    source = GgufFile(K4V8 / "qwen35_k4v8.Q4_K_M.gguf")
    return Graph(source, tmp_path_factory.mktemp("served"), int8_activations=True, lanes=3)


def memory(graph: Graph) -> dict[str, np.ndarray]:
    return {name: buffer.array()[0].copy() for name, buffer in graph.memory.items()}


def test_any_chunking_gives_the_same_logits_rows_and_state(served: Graph) -> None:
    wanted = served.read(IDS, [len(IDS)])
    kept = memory(served)
    for chunks in ([2] * 48, [94, 2], [2, 94], [3] * 32, [30, 2, 64]):
        for buffer in served.memory.values():
            buffer.array()[0] = 0
        assert np.array_equal(served.read(IDS, chunks), wanted)
        for name, array in memory(served).items():
            rows = slice(len(IDS)) if array.ndim == 3 and "recurrent" not in name else slice(None)
            assert np.array_equal(array[:, rows], kept[name][:, rows]), name


def test_a_state_put_back_goes_on_as_if_nothing_had_come_between(served: Graph) -> None:
    served.run(IDS[:60], 0)
    kept = memory(served)
    wanted = served.run(IDS[60:80], 60)
    served.run(IDS[::-1], 0)
    for name, buffer in served.memory.items():
        buffer.array()[0] = kept[name]
    assert np.array_equal(served.run(IDS[60:80], 60), wanted)


def test_ragged_batched_decode_gives_a_lane_the_same_bits_beside_others(served: Graph) -> None:
    assert_alike_beside_others(served, IDS, [40, 17, 63])

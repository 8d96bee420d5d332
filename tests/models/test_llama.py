"""Llama graphs give transformers' logits on the dequantised weights, however they are driven."""

from pathlib import Path

import numpy as np
import pytest

from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from tests.models.drive import FIXTURES, Graph, unpacked

FOLDER = FIXTURES / "llama"
EXPECTED = np.load(FOLDER / "expected.npz")
IDS = EXPECTED["ids"]
TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def q4_k_m(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return Graph(GgufFile(FOLDER / "llama.Q4_K_M.gguf"), tmp_path_factory.mktemp("q"), lanes=3)


def assert_rows_match(graph: Graph, kind: str) -> None:
    for position, wanted in zip(EXPECTED["fixed_rows"], EXPECTED[f"{kind}.rows"], strict=True):
        got = graph.read(IDS[: position + 1], [position + 1])
        np.testing.assert_allclose(got, wanted, atol=TOLERANCE, rtol=0)


def assert_greedy_matches(graph: Graph, kind: str) -> None:
    logits, tokens = graph.read(IDS, [len(IDS)]), list(IDS)
    for wanted in EXPECTED[f"{kind}.greedy"]:
        assert logits.argmax() == wanted
        tokens.append(wanted)
        logits = graph.run([wanted], len(tokens) - 1)[0]


def test_quantised_gguf_equals_transformers_on_its_weights(q4_k_m: Graph) -> None:
    assert_rows_match(q4_k_m, "Q4_K_M.exact")
    assert_greedy_matches(q4_k_m, "Q4_K_M.exact")


def test_float_gguf_equals_transformers(tmp_path: Path) -> None:
    graph = Graph(GgufFile(unpacked(FOLDER / "llama.f16.gguf", tmp_path)), tmp_path)
    assert_rows_match(graph, "hf")
    assert_greedy_matches(graph, "hf")


@pytest.fixture
def hf_folder(tmp_path: Path) -> Path:
    (tmp_path / "hf").mkdir()
    unpacked(FOLDER / "hf" / "model.safetensors", tmp_path / "hf")
    (tmp_path / "hf/config.json").write_bytes((FOLDER / "hf/config.json").read_bytes())
    return tmp_path / "hf"


def test_unquantised_safetensors_equal_transformers(hf_folder: Path, tmp_path: Path) -> None:
    graph = Graph(SafetensorsFolder(hf_folder, quantized=False), tmp_path)
    assert_rows_match(graph, "hf")


def test_safetensors_quantised_at_import_stay_close(hf_folder: Path, tmp_path: Path) -> None:
    graph = Graph(SafetensorsFolder(hf_folder), tmp_path)
    for position, wanted in zip(EXPECTED["fixed_rows"], EXPECTED["hf.rows"], strict=True):
        got = graph.read(IDS[: position + 1], [position + 1])
        assert kl(wanted, got) < 5e-3


def test_any_chunking_gives_the_same_bits(q4_k_m: Graph) -> None:
    wanted = q4_k_m.read(IDS, [len(IDS)])
    rows = {name: buffer.array()[0, :, : len(IDS)].copy() for name, buffer in q4_k_m.memory.items()}
    for chunks in ([2] * 48, [90, 6], [31, 33, 32], [3, 5, 7, 11, 70]):
        assert np.array_equal(q4_k_m.read(IDS, chunks), wanted)
        for name, buffer in q4_k_m.memory.items():
            assert np.array_equal(buffer.array()[0, :, : len(IDS)], rows[name])


def test_ragged_batched_decode_equals_each_lane_alone(q4_k_m: Graph) -> None:
    lengths = [40, 17, 63]
    alone = []
    for length in lengths:
        q4_k_m.run(IDS[:length], 0)
        alone.append(q4_k_m.run([IDS[length]], length)[0])
    for lane, length in enumerate(lengths):
        q4_k_m.run(IDS[:length], 0, first_lane=lane)
    together = q4_k_m.run([[IDS[length]] for length in lengths], lengths)
    # Bit-equal only at int8 activations, as it is served (test_smollm2).
    np.testing.assert_allclose(together, np.stack(alone), atol=2e-5, rtol=0)


def test_float16_rows_stay_close(tmp_path: Path) -> None:
    source = GgufFile(FOLDER / "llama.Q4_K_M.gguf")
    graph = Graph(source, tmp_path, row_dtype="float16")
    for position, wanted in zip(EXPECTED["fixed_rows"], EXPECTED["Q4_K_M.exact.rows"], strict=True):
        assert kl(wanted, graph.read(IDS[: position + 1], [position + 1])) < 1e-4


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def kl(wanted: np.ndarray, got: np.ndarray) -> float:
    """Kullback-Leibler divergence of two rows of logits, in nats."""
    p, q = log_softmax(wanted), log_softmax(got)
    return float((np.exp(p) * (p - q)).sum())

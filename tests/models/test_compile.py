"""A bundle is whole or made again, and what cannot be compiled leaves no trace."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from flm.errors import BadModelFile, NoRoom, UnsupportedModel
from flm.graph.bundle import MANIFEST, WEIGHTS, Bundle
from flm.graph.emit import ALIGNMENT, WeightStore
from flm.graph.matrices import store_matrices
from flm.graph.weights.blocks import BlockFormat, Blocks, Matrix
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.gguf_types import BLOCK_TYPES
from flm.models.compile import compile_model, prepare
from flm.models.growth import PARTS, bytes_at_most
from tests.models.drive import FIXTURES, Graph, unpacked
from tests.models.gguf_writer import tiny_llama


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf")


def prepared(source: Path, folder: Path) -> tuple[Bundle, list[str]]:
    said: list[str] = []
    return prepare(source, folder, say=said.append), said


def test_a_second_start_compiles_nothing(source: Path, tmp_path: Path) -> None:
    first, said = prepared(source, tmp_path / "b")
    assert said == ["Compiling tiny.gguf (once)"]
    second, said = prepared(source, tmp_path / "b")
    assert said == []
    assert (second.key, second.vocabulary, second.context_length) == (first.key, 64, 256)
    assert second.layouts["float32"].row_bytes == 2 * 2 * 16 * 4
    assert second.layouts["float16"].row_bytes == 2 * 2 * 16 * 2


def test_a_torn_bundle_is_made_again_with_a_word_why(source: Path, tmp_path: Path) -> None:
    whole, _ = prepared(source, tmp_path / "b")
    weights = (whole.folder / WEIGHTS).read_bytes()
    (whole.folder / WEIGHTS).write_bytes(weights[:-1])
    _, said = prepared(source, tmp_path / "b")
    assert said == [f"Compiling tiny.gguf again: {WEIGHTS} is torn"]
    assert (whole.folder / WEIGHTS).read_bytes() == weights
    (whole.folder / MANIFEST).write_text("{")
    _, said = prepared(source, tmp_path / "b")
    assert said == [f"Compiling tiny.gguf again: {MANIFEST} is damaged"]


def test_another_source_makes_a_bundle_stale(source: Path, tmp_path: Path) -> None:
    prepared(source, tmp_path / "b")
    data = bytearray(source.read_bytes())
    data[-40] ^= 1
    source.write_bytes(data)
    _, said = prepared(source, tmp_path / "b")
    assert said == ["Compiling tiny.gguf again: its source or flm has changed"]


def test_a_compile_that_fails_leaves_what_was_there(source: Path, tmp_path: Path) -> None:
    before, _ = prepared(source, tmp_path / "b")
    broken = tiny_llama(tmp_path / "broken.gguf", **{"llama.feed_forward_length": 48})
    with pytest.raises(BadModelFile, match="ffn_gate"):
        compile_model(broken, tmp_path / "b")
    assert Bundle.open(tmp_path / "b").key == before.key
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "broken.gguf", "tiny.gguf"]


@pytest.mark.parametrize(
    ("key", "item", "error", "word"),
    [
        ("general.architecture", "mamba", UnsupportedModel, "mamba"),
        ("general.architecture", None, BadModelFile, "general.architecture"),
        ("llama.block_count", 0, BadModelFile, "layers"),
        ("llama.block_count", 3, BadModelFile, "blk.2"),
        ("llama.attention.head_count", 4, BadModelFile, "blk.0.attn_k"),
        ("llama.attention.head_count", 3, BadModelFile, "blk.0.attn_q"),
        ("llama.attention.head_count_kv", 0, BadModelFile, "kv_heads"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), BadModelFile, "epsilon"),
        ("llama.context_length", "long", BadModelFile, "context_length"),
        ("llama.expert_count", 8, UnsupportedModel, "mixture"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    tmp_path: Path, key: str, item: object, error: type[Exception], word: str
) -> None:
    source = tiny_llama(tmp_path / "tiny.gguf", **{key: item})
    with pytest.raises(error, match=word):
        compile_model(source, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_no_room_says_how_much_is_needed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(NoRoom, match="GiB"):
        compile_model(source, tmp_path / "b")


@pytest.mark.parametrize("format", {t.format for t in BLOCK_TYPES.values()}, ids=str)
def test_a_weight_takes_what_its_format_says(format: BlockFormat, tmp_path: Path) -> None:
    rows, count = 16, 32
    numbers = np.ones((rows, count), np.float32)
    codes = np.zeros((rows, count, format.block), np.uint8)
    blocks = Blocks(format, codes, numbers, numbers if format.minimum else None)
    shape = (rows, count * format.block)
    matrix = Matrix("m", shape, format, lambda _: blocks, lambda _: blocks.dense())
    stored = store_matrices(WeightStore(tmp_path / "w"), [matrix])
    parts = (stored.codes, stored.scales, stored.minimum)
    assert sum(part.bytes for part in parts if part) == codes.size * format.weight_bytes


@pytest.mark.parametrize(
    ("name", "kind"),
    [("llama", "Q4_K_M"), ("qwen35_r1", "Q4_1"), ("qwen35moe", "Q4_0"), ("gemma4", "Q4_0")],
)
def test_weights_take_no_more_room_than_is_asked_for_and_little_less(
    name: str, kind: str, tmp_path: Path
) -> None:
    path = FIXTURES / name / f"{name}.{kind}.gguf"
    file = GgufFile(path if path.exists() else unpacked(path, tmp_path))
    taken, most = Graph(file, tmp_path).weights_bytes, bytes_at_most(file)
    pages = len(file.tensors) * PARTS * ALIGNMENT  # of which tiny tensors fill little
    assert taken - 2**20 < most < 1.3 * taken + pages  # tables of angles are not counted


def test_room_that_runs_out_later_is_an_error_and_no_crash(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("flm.graph.emit.posix_fallocate", full)
    with pytest.raises(NoRoom, match="No space"):
        compile_model(source, tmp_path / "b")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "tiny.gguf")
    source.write_bytes(source.read_bytes().replace(b"blk.1.ffn_up", b"blk.1.ffn_ux"))
    with pytest.raises(BadModelFile, match=r"blk\.1\.ffn_up"):
        compile_model(source, tmp_path / "b")


def test_the_graph_is_made_of_our_functions(source: Path, tmp_path: Path) -> None:
    import onnx

    compile_model(source, tmp_path / "b")
    model = onnx.load(str(tmp_path / "b" / "graph.float32.onnx"), load_external_data=False)
    ours = {node.op_type for node in model.graph.node if node.domain == "flm"}
    assert ours == {"Embedding", "Linear", "RMSNorm", "AddRMSNorm", "PackedAttention", "SwiGLU"}
    assert ours == {function.name for function in model.functions}
    assert json.loads((tmp_path / "b" / MANIFEST).read_text())["vocabulary"] == 64
    assert np.all([node.name for node in model.graph.node])

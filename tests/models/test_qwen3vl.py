"""Qwen3-VL: the tower's rows, with what is for further layers, and the model's logits are those of
transformers, from the folder it is published in and from a GGUF with its mmproj file.
"""

from pathlib import Path

import numpy as np
import pytest

from flm.errors import BadModelFile
from flm.graph.weights.gguf import GgufFile
from flm.models.compile import prepare
from flm.models.family import family_of
from flm.models.qwen35 import tower
from tests.models.drive import FIXTURES, Graph
from tests.models.seeing import (
    Seeing,
    assert_a_snapshot_goes_on,
    assert_any_chunks_give_the_same_bits,
    assert_logits_are,
    assert_text_keeps_its_bits,
    shown_at,
)
from tests.models.seen import as_mmproj, pictures
from tests.models.seen_qwen3vl import DEEP, EVERY, ROW, as_qwen3vl, folder_of, text_file

EXPECTED = np.load(FIXTURES / "qwen3vl_seen" / "expected.npz")
IDS = tuple(np.load(FIXTURES / "qwen3" / "expected.npz")["ids"].tolist())


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    return text_file(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def folder(text: GgufFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(text, tmp_path_factory.mktemp("published") / "hf")


@pytest.fixture(scope="module", params=["folder", "gguf"])
def seeing(
    request: pytest.FixtureRequest,
    text: GgufFile,
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Seeing:
    scratch = tmp_path_factory.mktemp(request.param)
    if request.param == "folder":
        return Seeing(folder, scratch)
    mmproj = GgufFile(as_mmproj(folder, scratch / "mmproj.gguf"))
    return Seeing(GgufFile(as_qwen3vl(text, scratch / "text.gguf")), scratch, mmproj)


@pytest.mark.parametrize("number", range(len(pictures())))
def test_rows_are_those_of_transformers_in_all_their_parts(number: int, seeing: Seeing) -> None:
    shown = shown_at(0, pictures()[number], seeing.eyes.sight, tokens_max=1024)
    rows = seeing.eyes.rows(shown)
    assert rows.shape == (shown.end, ROW * (1 + len(DEEP)))
    np.testing.assert_allclose(rows[:, ::EVERY], EXPECTED[f"rows.{number}"], atol=1e-4, rtol=0)


def test_logits_of_a_prompt_with_pictures_are_those_of_transformers(seeing: Seeing) -> None:
    assert_logits_are(EXPECTED, seeing)


def test_any_chunking_gives_the_same_bits_even_within_pictures(seeing: Seeing) -> None:
    assert_any_chunks_give_the_same_bits(seeing)


@pytest.mark.parametrize("cut", [3, 20, 70])
def test_a_snapshot_from_before_or_within_pictures_goes_on_bit_for_bit(
    cut: int, seeing: Seeing
) -> None:
    assert_a_snapshot_goes_on(seeing, cut)


@pytest.mark.parametrize("row_dtype", ["float32", "float16"])
def test_text_alone_is_read_bit_for_bit_as_by_a_graph_that_sees_nothing_and_by_qwen3(
    row_dtype: str, text: GgufFile, tmp_path: Path
) -> None:
    source = GgufFile(as_qwen3vl(text, tmp_path / "text.gguf"))
    plain = GgufFile(as_qwen3vl(text, tmp_path / "qwen3.gguf", architecture="qwen3"))
    assert [family_of(each)[0] for each in (source, plain)] == ["qwen3vl", "qwen3"]
    (tmp_path / "plain").mkdir()
    qwen3 = Graph(plain, tmp_path / "plain", int8_activations=True, row_dtype=row_dtype)
    read, decoded = assert_text_keeps_its_bits(source, row_dtype, IDS, tmp_path)
    assert np.array_equal(read, qwen3.read(IDS, [len(IDS)]))
    assert np.array_equal(decoded, qwen3.run([300], len(IDS))[0])


@pytest.fixture
def gguf(text: GgufFile, tmp_path: Path) -> Path:
    return as_qwen3vl(text, tmp_path / "text.gguf", tokenizer=True)


def test_a_gguf_file_sees_by_the_tower_beside_it(gguf: Path, folder: Path) -> None:
    as_mmproj(folder, gguf.parent / "mmproj-F32.gguf")
    sight = prepare(gguf, gguf.parent / "bundle").sight
    assert sight
    assert (sight.kind, sight.spread, sight.whole) == ("cells", True, False)


def test_a_tower_without_the_parts_that_a_model_adds_is_left_out(gguf: Path, folder: Path) -> None:
    as_mmproj(folder, gguf.parent / "mmproj-F32.gguf", deep=[0])
    said: list[str] = []
    assert prepare(gguf, gguf.parent / "bundle", say=said.append).sight is None
    assert "mmproj-F32.gguf makes rows of 256 and the model takes 384: it is left out" in said


@pytest.mark.parametrize("layer", [4, 40])
def test_a_tower_with_a_merger_behind_no_layer_is_refused(
    layer: int, folder: Path, tmp_path: Path
) -> None:
    file = GgufFile(as_mmproj(folder, tmp_path / "mmproj.gguf", deep=[0, layer]))
    with pytest.raises(BadModelFile, match="4 layers"):
        tower.shape(file)


@pytest.mark.parametrize("count", [4, 1000])
def test_a_model_that_adds_to_more_layers_than_it_has_is_refused(
    count: int, text: GgufFile, tmp_path: Path
) -> None:
    changes = {"qwen3vl.n_deepstack_layers": count}
    with pytest.raises(BadModelFile, match="layers of 4"):
        prepare(as_qwen3vl(text, tmp_path / "t.gguf", **changes), tmp_path / "bundle")

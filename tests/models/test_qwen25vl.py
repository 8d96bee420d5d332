"""Qwen2.5-VL: patches, the tower's rows and the model's logits are transformers', from the folders
it is published in and from a GGUF with its mmproj file.
"""

from pathlib import Path

import numpy as np
import pytest

from flm.core.picture import CELLS, COUNTS, PATCHES, SEATS, WINDOWS, Picture, Sight
from flm.errors import BadModelFile
from flm.graph.emit import Emitter, WeightStore
from flm.graph.layers import Numerics
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from flm.models.compile import prepare
from flm.models.qwen25vl import tower
from flm.models.qwen25vl.graph import emit
from flm.text.sight import fitted, inputs
from flm.text.sight.cells import size_fitted
from tests.models.drive import FIXTURES, Graph
from tests.models.seeing import (
    Seeing,
    assert_a_snapshot_goes_on,
    assert_any_chunks_give_the_same_bits,
    assert_logits_are,
    assert_text_keeps_its_bits,
    eyes_of,
    shown_at,
)
from tests.models.seen import pictures
from tests.models.seen_qwen25vl import (
    PATCHES_STEP,
    as_mmproj,
    as_qwen2vl,
    folder_of,
    text_file,
)

EXPECTED = np.load(FIXTURES / "qwen25vl_seen" / "expected.npz")
NUMBERS = range(len(pictures()))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    return text_file(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def folder(text: GgufFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(text, tmp_path_factory.mktemp("published") / "hf")


@pytest.fixture(scope="module", params=["published", "moved", "gguf"])
def seeing(
    request: pytest.FixtureRequest,
    text: GgufFile,
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Seeing:
    scratch = tmp_path_factory.mktemp(request.param)
    if request.param == "gguf":
        mmproj = GgufFile(as_mmproj(folder, scratch / "mmproj.gguf"))
        return Seeing(GgufFile(as_qwen2vl(text, scratch / "text.gguf")), scratch, mmproj)
    if request.param == "moved":
        return Seeing(folder_of(text, scratch / "hf", nested=True), scratch)
    return Seeing(folder, scratch)


@pytest.mark.parametrize("number", NUMBERS)
def test_patches_are_the_reference_processors(number: int, seeing: Seeing) -> None:
    sight = seeing.eyes.sight
    picture = fitted(pictures()[number], sight, tokens_max=1024, place="it")
    patches = inputs(picture, sight)[PATCHES].reshape(-1, 3, sight.patch**2)
    levels = patches * np.array(sight.deviation)[:, None] + np.array(sight.mean)[:, None]
    wanted = EXPECTED[f"patches.{number}"].astype(np.float32)
    assert np.abs(levels.reshape(wanted.shape) * 255 - wanted).max() <= 1


@pytest.fixture(scope="module")
def published(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Sight:
    """As Qwen set it up, where no file says otherwise."""
    says = {"patch_size": 14, "window_size": 112}
    changes: dict[str, object] = {f"clip.vision.{key}": value for key, value in says.items()}
    changes |= dict.fromkeys(("clip.vision.image_min_pixels", "clip.vision.image_max_pixels"))
    place = tmp_path_factory.mktemp("sight") / "mmproj.gguf"
    return tower.shape(GgufFile(as_mmproj(folder, place, **changes))).sight


@pytest.mark.parametrize("number", NUMBERS)
def test_pictures_at_their_true_size_are_the_reference_processors(
    number: int, published: Sight
) -> None:
    picture = fitted(pictures()[number], published, tokens_max=16384, place="it")
    patches = inputs(picture, published)[PATCHES][::PATCHES_STEP].reshape(-1, 3, 14 * 14)
    levels = patches * np.array(published.deviation)[:, None] + np.array(published.mean)[:, None]
    wanted = EXPECTED[f"published.{number}"].astype(np.float32)
    assert np.abs(levels.reshape(wanted.shape) * 255 - wanted).max() <= 1


def test_sizes_are_the_reference_processors(published: Sight) -> None:
    for (width, height), wanted in zip(EXPECTED["sizes"], EXPECTED["fitted"], strict=True):
        got = size_fitted(int(width), int(height), published, 16384, place="it")
        assert got == tuple(wanted), (width, height)


@pytest.mark.parametrize("number", NUMBERS)
def test_rows_are_those_of_transformers(number: int, seeing: Seeing) -> None:
    shown = shown_at(0, pictures()[number], seeing.eyes.sight, tokens_max=1024)
    rows = seeing.eyes.rows(shown)
    np.testing.assert_allclose(rows, EXPECTED[f"rows.{number}"], atol=1e-4, rtol=0)


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
def test_text_alone_is_read_bit_for_bit_as_by_a_graph_that_sees_nothing(
    row_dtype: str, folder: Path, tmp_path: Path
) -> None:
    ids = tuple(np.load(FIXTURES / "qwen2" / "expected.npz")["ids"].tolist())
    assert_text_keeps_its_bits(SafetensorsFolder(folder), row_dtype, ids, tmp_path)


def test_text_alone_is_read_as_by_qwen2(text: GgufFile, tmp_path: Path) -> None:
    renamed = GgufFile(as_qwen2vl(text, tmp_path / "text.gguf"))
    ids = np.load(FIXTURES / "qwen2" / "expected.npz")["ids"]
    for name in ("vl", "plain"):
        (tmp_path / name).mkdir()
    vl, plain = Graph(renamed, tmp_path / "vl"), Graph(text, tmp_path / "plain")
    np.testing.assert_allclose(
        vl.read(ids, [len(ids)]), plain.read(ids, [len(ids)]), atol=1e-4, rtol=0
    )


def test_a_gguf_file_sees_by_the_tower_beside_it(
    text: GgufFile, folder: Path, tmp_path: Path
) -> None:
    file = as_qwen2vl(text, tmp_path / "text.gguf")
    as_mmproj(folder, tmp_path / "mmproj-F32.gguf")
    sight = prepare(file, tmp_path / "bundle").sight
    assert sight
    assert (sight.kind, sight.side, sight.spread) == ("windows", 6, True)


def test_qwen2_vl_reads_text_without_its_tower(
    text: GgufFile, folder: Path, tmp_path: Path
) -> None:
    file = as_qwen2vl(text, tmp_path / "text.gguf")
    changes: dict[str, object] = {"clip.projector_type": "qwen2vl_merger"}
    as_mmproj(folder, tmp_path / "mmproj.gguf", **changes)
    said: list[str] = []
    assert prepare(file, tmp_path / "bundle", say=said.append).sight is None
    assert "mmproj.gguf is a tower of another kind, qwen2vl_merger: it is left out" in said


@pytest.mark.parametrize(
    "changes",
    [
        {"clip.vision.n_wa_pattern": 0},
        {"clip.vision.window_size": 7},
        {"clip.vision.image_std": "none"},
        {"clip.vision.attention.head_count": 3},
    ],
)
def test_a_tower_that_contradicts_itself_is_refused(
    changes: dict[str, object], folder: Path, tmp_path: Path
) -> None:
    file = GgufFile(as_mmproj(folder, tmp_path / "mmproj.gguf", **changes))
    with pytest.raises(BadModelFile, match="mmproj"):
        tower.shape(file)


@pytest.mark.parametrize("sections", [[4, 4, 4], [4, 6], ["a", 6, 6], [20, -2, -2], 16])
def test_sections_that_are_not_those_of_a_head_are_refused(
    sections: object, folder: Path, tmp_path: Path
) -> None:
    source = SafetensorsFolder(folder)
    source.config["rope_scaling"] = {"type": "mrope", "mrope_section": sections}
    emitter = Emitter(WeightStore(tmp_path / "weights.bin"))
    with pytest.raises(BadModelFile, match="heads that turn by"):
        emit(source, emitter, Numerics(sees=True))


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (2, 30), (16, 24), (22, 10), (6, 2)])
def test_windows_are_squares_that_have_every_patch_once(rows: int, columns: int) -> None:
    sight = Sight("windows", 2, 2, 8, 4, 2**20, placeholder="", mark="", spread=True)
    picture = Picture(2 * columns, 2 * rows, bytes(12 * rows * columns))
    given = inputs(picture, sight)
    windows, counts, seats = given[WINDOWS], given[COUNTS], given[SEATS]
    assert counts.sum() == rows * columns
    assert sorted(np.concatenate([w[:n] for w, n in zip(windows, counts, strict=True)])) == sorted(
        range(rows * columns)
    )
    assert np.array_equal(windows.reshape(-1)[seats], np.arange(rows * columns))
    for window, count in zip(windows, counts, strict=True):
        squares = given[CELLS][window[:count]] // 8
        assert (squares == squares[0]).all()
        assert (seats[window[:count]] % windows.shape[1] < count).all()
    assert windows.shape[1] == counts.max() == min(8, rows) * min(8, columns)


def test_a_tower_is_served_in_8_bits_even_where_its_mlp_is_no_whole_blocks(
    folder: Path, seeing: Seeing, tmp_path: Path
) -> None:
    sources = [SafetensorsFolder(folder), GgufFile(as_mmproj(folder, tmp_path / "mmproj.gguf"))]
    served = []
    for name, source in zip(("mlp.down_proj", "ffn_down"), sources, strict=True):
        (tmp_path / name).mkdir()
        served.append(eyes_of(source, tmp_path / name, family="qwen25vl", served=True))
        assert f"{name}.weight.codes".encode() in (tmp_path / name / "tower.onnx").read_bytes()
    for picture in pictures():
        shown = shown_at(0, picture, seeing.eyes.sight)
        of_folder, of_file = (eyes.rows(shown) for eyes in served)
        np.testing.assert_array_equal(of_folder, of_file)
        exact = seeing.eyes.rows(shown)
        assert 1e-3 < np.linalg.norm(of_file - exact) / np.linalg.norm(exact) < 0.03

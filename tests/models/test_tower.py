"""Pictures: patches, the tower's rows and the model's logits are transformers', and text that comes
with none is read as by a graph that sees nothing.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flm.core.picture import PATCHES
from flm.errors import BadModelFile, PassCancelled
from flm.graph.bundle import MANIFEST, Bundle, StaleBundle
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from flm.models.compile import prepare
from flm.models.family import Source
from flm.runner.eyes import Eyes
from flm.text.sight import fitted, inputs
from tests.models.drive import FIXTURES, unpacked
from tests.models.rewritten import published
from tests.models.seeing import (
    Seeing,
    assert_any_chunks_give_the_same_bits,
    assert_logits_are,
    assert_text_keeps_its_bits,
    eyes_of,
    shown_at,
)
from tests.models.seen import as_mmproj, pictures, with_tower

R1 = FIXTURES / "qwen35_r1"
EXPECTED = np.load(FIXTURES / "qwen35_seen" / "expected.npz")
NUMBERS = range(len(pictures()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = GgufFile(R1 / "qwen35_r1.Q4_1.gguf")
    place = tmp_path_factory.mktemp("seen") / "hf"
    return with_tower(published(file, R1 / "hf" / "config.json", place))


@pytest.fixture(scope="module")
def seeing(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing(folder, tmp_path_factory.mktemp("seeing"))


@pytest.mark.parametrize("number", NUMBERS)
def test_patches_are_the_reference_processors(number: int, seeing: Seeing) -> None:
    sight = seeing.eyes.sight
    picture = fitted(pictures()[number], sight, tokens_max=1024, place="it")
    levels = (inputs(picture, sight)[PATCHES] * 0.5 + 0.5) * 255
    wanted = EXPECTED[f"patches.{number}"].astype(np.float32)
    assert levels.shape == wanted.shape
    assert np.abs(levels - wanted).max() <= 1


@pytest.mark.parametrize("number", NUMBERS)
def test_rows_are_those_of_transformers(number: int, seeing: Seeing) -> None:
    shown = shown_at(0, pictures()[number], seeing.eyes.sight, tokens_max=1024)
    rows = seeing.eyes.rows(shown)
    np.testing.assert_allclose(rows, EXPECTED[f"rows.{number}"], atol=1e-4, rtol=0)


def test_an_mmproj_file_gives_the_same_tower(folder: Path, tmp_path: Path, seeing: Seeing) -> None:
    mmproj = GgufFile(as_mmproj(folder, tmp_path / "mmproj.gguf"))
    eyes = eyes_of(mmproj, tmp_path, family="qwen35")
    for picture in pictures():
        shown = shown_at(0, picture, eyes.sight)
        np.testing.assert_allclose(eyes.rows(shown), seeing.eyes.rows(shown), atol=1e-5, rtol=0)


def test_a_tower_is_served_in_8_bits_whatever_floats_it_comes_from(
    folder: Path, tmp_path: Path, seeing: Seeing
) -> None:
    """What that costs, of random weights: up to 3 % of a row's length."""
    sources: list[tuple[Source, str | None]] = [
        (SafetensorsFolder(folder, quantized=True), None),
        (GgufFile(as_mmproj(folder, tmp_path / "mmproj.gguf")), "qwen35"),
    ]
    served = []
    for number, (source, family) in enumerate(sources):
        (tmp_path / str(number)).mkdir()
        served.append(eyes_of(source, tmp_path / str(number), family=family, served=True))
    for picture in pictures():
        shown = shown_at(0, picture, seeing.eyes.sight)
        of_folder, of_file = (eyes.rows(shown) for eyes in served)
        np.testing.assert_array_equal(of_folder, of_file)
        exact = seeing.eyes.rows(shown)
        off = np.linalg.norm(of_file - exact) / np.linalg.norm(exact)
        assert 1e-3 < off < 0.03


def test_logits_of_a_prompt_with_pictures_are_those_of_transformers(seeing: Seeing) -> None:
    assert_logits_are(EXPECTED, seeing)


def test_any_chunking_gives_the_same_bits_even_within_pictures(seeing: Seeing) -> None:
    assert_any_chunks_give_the_same_bits(seeing)


@pytest.mark.parametrize("row_dtype", ["float32", "float16"])
@pytest.mark.parametrize(("name", "kind"), [("qwen35_k4v8", "Q4_K_M"), ("qwen35moe", "Q4_0")])
def test_text_alone_is_read_bit_for_bit_as_by_a_graph_that_sees_nothing(
    name: str, kind: str, row_dtype: str, tmp_path: Path
) -> None:
    file = FIXTURES / name / f"{name}.{kind}.gguf"
    source = GgufFile(file if file.exists() else unpacked(file, tmp_path))
    ids = tuple(np.load(FIXTURES / name / "expected.npz")["ids"].tolist())
    assert_text_keeps_its_bits(source, row_dtype, ids, tmp_path)


def test_a_picture_is_encoded_once_while_its_rows_fit(folder: Path, tmp_path: Path) -> None:
    source = SafetensorsFolder(folder, quantized=False)
    eyes = eyes_of(source, tmp_path, bytes_max=50 * 128 * 4)  # 50 rows: two of these do not fit
    small, large, other, square = (shown_at(0, each, eyes.sight) for each in pictures())
    for shown, encoded in [(small, 1), (large, 2), (small, 2), (large, 2), (square, 3), (small, 4)]:
        eyes.rows(shown)
        eyes.check()
        assert eyes.encoded == encoded
    assert np.array_equal(eyes.rows(other), eyes.rows(other))


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A text model in a folder of its own."""
    place = tmp_path / "models"
    place.mkdir()
    return Path(shutil.copy(R1 / "qwen35_r1.Q4_1.gguf", place))


def test_a_gguf_file_sees_by_the_tower_beside_it(gguf: Path, folder: Path) -> None:
    bundle = prepare(gguf, gguf.parent / "bundle")
    assert bundle.sight is None
    as_mmproj(folder, gguf.parent / "mmproj-F32.gguf")
    said: list[str] = []
    seeing = prepare(gguf, gguf.parent / "bundle", say=said.append)
    assert seeing.sight
    assert seeing.graph("float32").name == "graph.float32.seeing.onnx"
    assert seeing.blind().graph("float32").name == "graph.float32.onnx", "an NPU's"
    assert seeing.blind().graph("float32").is_file()
    assert said == [f"Compiling {gguf.name} again: its source or flm has changed"]


def test_a_bundle_that_says_otherwise_how_it_sees_is_made_again(gguf: Path, folder: Path) -> None:
    as_mmproj(folder, gguf.parent / "mmproj-F32.gguf")
    made = prepare(gguf, gguf.parent / "bundle")
    assert Bundle.open(made.folder).sight == made.sight
    manifest = made.folder / MANIFEST
    written = json.loads(manifest.read_text())
    del written["sight"]["whole"]  # as an flm that knew of no such thing
    manifest.write_text(json.dumps(written))
    with pytest.raises(StaleBundle, match="how it sees"):
        Bundle.open(made.folder)
    assert prepare(gguf, made.folder).sight == made.sight


def test_a_tower_of_another_model_is_left_out_with_a_word(gguf: Path, folder: Path) -> None:
    as_mmproj(folder, gguf.parent / "mmproj-F32.gguf", **{"clip.vision.projection_dim": 64})
    said: list[str] = []
    assert prepare(gguf, gguf.parent / "bundle", say=said.append).sight is None
    assert "mmproj-F32.gguf makes rows of 64 and the model takes 128: it is left out" in said


def test_of_several_towers_none_is_guessed(gguf: Path, folder: Path) -> None:
    for name in ("mmproj-F16.gguf", "mmproj-F32.gguf"):
        as_mmproj(folder, gguf.parent / name)
    said: list[str] = []
    assert prepare(gguf, gguf.parent / "bundle", say=said.append).sight is None
    assert f"There are 2 mmproj files beside {gguf.name}: none of them is taken" in said


def test_a_damaged_tower_is_told_and_nothing_is_left_behind(gguf: Path) -> None:
    (gguf.parent / "mmproj-F32.gguf").write_bytes(b"GGUF but not really")
    with pytest.raises(BadModelFile, match="mmproj-F32"):
        prepare(gguf, gguf.parent / "bundle")
    assert not (gguf.parent / "bundle").exists()


def test_a_picture_that_nobody_waits_for_any_more_is_given_up(seeing: Seeing) -> None:
    class Long:
        """A tower that is at work when it is cancelled."""

        def run(self, names: object, given: object, options: Any) -> None:
            eyes.cancel()
            assert options.terminate
            raise RuntimeError("terminated")

    sight = seeing.eyes.sight
    eyes = Eyes(Long(), sight, width=128, bytes_max=2**20)  # type: ignore[arg-type]
    shown = shown_at(0, pictures()[0], sight)
    with pytest.raises(PassCancelled):
        eyes.rows(shown)
    eyes.cancel()  # of nothing
    eyes.check()
    assert eyes.encoded == 0

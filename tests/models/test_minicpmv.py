"""Pictures in slices (MiniCPM-V 4.6): how they are cut, what stands around the parts, the tower's
rows and the model's logits are transformers'.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from flm.core.picture import PATCHES, Placed, View, placed
from flm.core.step import Span, Step
from flm.errors import BadModelFile
from flm.graph.weights.gguf import GgufFile
from flm.models.compile import prepare
from flm.prefix.shown import with_pictures
from flm.text.sight import fitted, inputs, views
from tests.models.drive import FIXTURES, unpacked
from tests.models.seeing import Seeing, eyes_of
from tests.models.sliced import PROMPT, R1, WORDS, as_mmproj, pictures, sliced_folder

EXPECTED = np.load(FIXTURES / "minicpmv_seen" / "expected.npz")
NUMBERS = range(len(pictures()))
MODES = ("16x", "4x")  # so many patches become a token


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(mode: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sliced_folder(tmp_path_factory.mktemp("sliced") / "hf", mode)


class Sliced(Seeing):
    def views(self, number: int, *, order: int = 0) -> tuple[View, ...]:
        sight = self.eyes.sight
        picture = fitted(pictures()[number], sight, tokens_max=1024, place="it")
        return views(picture, sight, order)

    def prompt(self) -> tuple[tuple[int, ...], tuple[Placed, ...]]:
        tokens: list[int] = []
        shown: list[Placed] = []
        further = 0
        for each in PROMPT:
            if each >= 0:
                tokens.append(each)
                continue
            order = len({place.place for place in shown})
            for view in self.views(-each - 1, order=order):
                tokens += ids_of(view.before)
                shown.append(placed(view, len(tokens) + further, str(order)))
                tokens += [0, *ids_of(view.after)]
                further += shown[-1].end - shown[-1].start - 1
        return with_pictures(tokens, shown), tuple(shown)


def ids_of(text: str) -> list[int]:
    """Of words of WORDS."""
    found = []
    while text:
        word = next(each for each in WORDS if text.startswith(each))
        found.append(WORDS[word])
        text = text[len(word) :]
    return found


@pytest.fixture(scope="module")
def seeing(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Sliced:
    return Sliced(folder, tmp_path_factory.mktemp("seeing"))


@pytest.mark.parametrize("number", NUMBERS)
def test_parts_and_what_is_around_them_are_the_reference_processors(
    number: int, mode: str, seeing: Sliced
) -> None:
    parts = seeing.views(number, order=7)
    patch = seeing.eyes.sight.patch
    sizes = [[view.picture.height // patch, view.picture.width // patch] for view in parts]
    assert sizes == EXPECTED[f"{mode}.sizes.{number}"].tolist()
    text = "".join(each.before + "@" * each.rows * each.columns + each.after for each in parts)
    assert text == f"<image_id>7</image_id>{EXPECTED[f'{mode}.texts'][number]}"


@pytest.mark.parametrize("number", NUMBERS)
def test_patches_are_the_reference_processors(number: int, mode: str, seeing: Sliced) -> None:
    sight = seeing.eyes.sight
    found = []
    for view in seeing.views(number):
        patches = inputs(view.picture, sight)[PATCHES]
        found.append(patches[in_rows(view, sight.merge)])
    levels = (np.concatenate(found)[::3] * 0.5 + 0.5) * 255
    if mode == "16x":
        wanted = EXPECTED[f"16x.patches.{number}"].astype(np.float32)
        assert np.abs(levels - wanted).max() <= 1


def in_rows(view: View, merge: int) -> npt.NDArray[np.int64]:
    """Where each patch of a view, row by row, is among those that merge one after the other."""
    rows, columns = view.rows * merge, view.columns * merge
    numbers = []
    for y, x in np.ndindex(rows, columns):
        number, size = 0, merge
        number = (y // size) * (columns // size) + x // size
        while size > 1:
            size //= 2
            number = 4 * number + 2 * (y // size % 2) + x // size % 2
        numbers.append(number)
    return np.array(numbers)


@pytest.mark.parametrize("number", NUMBERS)
def test_rows_are_those_of_transformers(number: int, mode: str, seeing: Sliced) -> None:
    rows = np.concatenate([seeing.eyes.rows(placed(view, 0)) for view in seeing.views(number)])
    assert len(rows) == sum(view.rows * view.columns for view in seeing.views(number))
    if f"{mode}.rows.{number}" in EXPECTED:
        wanted = EXPECTED[f"{mode}.rows.{number}"]
        np.testing.assert_allclose(rows, wanted, atol=1e-4, rtol=0)


def test_an_mmproj_file_gives_the_same_tower(folder: Path, tmp_path: Path, seeing: Sliced) -> None:
    file = GgufFile(as_mmproj(folder, tmp_path / "mmproj.gguf"))
    eyes = eyes_of(file, tmp_path, family="qwen35")
    for number in NUMBERS:
        for view in seeing.views(number):
            shown = placed(view, 0)
            np.testing.assert_allclose(eyes.rows(shown), seeing.eyes.rows(shown), atol=1e-5, rtol=0)


def test_logits_of_a_prompt_with_pictures_are_those_of_transformers(
    mode: str, seeing: Sliced
) -> None:
    tokens, shown = seeing.prompt()
    assert len(tokens) == len(EXPECTED[f"{mode}.ids"])
    ends = EXPECTED[f"{mode}.ends"]
    for end, wanted in zip(ends, EXPECTED[f"{mode}.logits"], strict=True):
        got = seeing.read(tokens[: end + 1], shown, [end + 1])
        np.testing.assert_allclose(got, wanted, atol=1e-4, rtol=0)
    logits, length = seeing.read(tokens, shown, [len(tokens)]), len(tokens)
    for wanted in EXPECTED[f"{mode}.greedy"]:
        assert logits.argmax() == wanted
        span = Span(0, length, (int(wanted),), shown)
        logits = seeing.runner.run(Step((span,), prefill=False))[0]
        length += 1


def test_any_chunking_gives_the_same_bits_even_within_pictures(seeing: Sliced) -> None:
    tokens, shown = seeing.prompt()
    wanted = seeing.read(tokens, shown, [len(tokens)])
    for chunks in ([2, 2, 5, len(tokens) - 9], [20, len(tokens) - 22, 2]):
        assert np.array_equal(seeing.read(tokens, shown, chunks), wanted)


def test_a_state_kept_within_a_picture_goes_on_with_the_same_bits(seeing: Sliced) -> None:
    tokens, shown = seeing.prompt()
    wanted = seeing.read(tokens, shown, [len(tokens)])
    cut = shown[2].start + 2
    seeing.read(tokens[:cut], shown, [cut])
    snapshot = seeing.runner.save(0, 0, cut)
    seeing.read((300,) * 9, (), [9], lane=1)
    seeing.runner.restore(1, list(tokens[:cut]), [snapshot])
    span = Span(1, cut, tokens[cut:], shown)
    assert np.array_equal(seeing.runner.run(Step((span,), prefill=True))[1], wanted)


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A text model in a folder of its own."""
    place = tmp_path / "models"
    place.mkdir()
    return Path(shutil.copy(R1 / "qwen35_r1.Q4_1.gguf", place))


def test_a_gguf_file_sees_by_the_tower_beside_it(gguf: Path, folder: Path) -> None:
    as_mmproj(folder, gguf.parent / "mmproj-F32.gguf")
    sight = prepare(gguf, gguf.parent / "bundle").sight
    assert sight
    assert (sight.kind, sight.spread) == ("slices", False)


def test_a_kind_that_is_not_built_leaves_the_text_part_with_a_word(
    gguf: Path, folder: Path
) -> None:
    as_mmproj(folder, gguf.parent / "mmproj-F32.gguf", projector="resampler")
    said: list[str] = []
    assert prepare(gguf, gguf.parent / "bundle", say=said.append).sight is None
    assert "mmproj-F32.gguf is a tower of another kind, resampler: it is left out" in said


def test_a_tower_beside_a_family_that_has_none_is_left_out_with_a_word(
    folder: Path, tmp_path: Path
) -> None:
    text = unpacked(FIXTURES / "qwen3" / "qwen3.Q4_0.gguf", tmp_path)
    as_mmproj(folder, text.parent / "mmproj-F32.gguf", projector="resampler")
    said: list[str] = []
    assert prepare(text, tmp_path / "bundle", say=said.append).sight is None
    word = "flm builds no picture tower for 'qwen3', mmproj-F32.gguf is left out"
    assert f"Pictures are not taken: {word}" in said


@pytest.mark.parametrize(
    "changed", [{"merger_times": 2}, {"merge_kernel_size": [3, 3]}, {"mrope_mode": "canvas"}]
)
def test_a_tower_that_merges_otherwise_leaves_the_text_part(
    changed: dict[str, object], folder: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, **changed}))
    said: list[str] = []
    assert prepare(other, tmp_path / "bundle", say=said.append).sight is None
    assert any("Pictures are not taken" in line for line in said)


@pytest.mark.parametrize("changed", [{"downsample_mode": "2x"}, {"insert_layer_id": 7}])
def test_a_tower_that_contradicts_itself_is_refused(
    changed: dict[str, object], folder: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    config |= {"downsample_mode": "16x", **changed}
    (other / "config.json").write_text(json.dumps(config))
    (other / "preprocessor_config.json").unlink()
    with pytest.raises(BadModelFile):
        prepare(other, tmp_path / "bundle")

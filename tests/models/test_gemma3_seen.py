"""Gemma 3's pictures: pixels, the tower's rows and the model's logits are transformers', which lets
a picture's tokens attend to each other both ways; text that comes with none is read as it was.
"""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flm.core.picture import PATCHES, Placed
from flm.core.step import Span, Step
from flm.devices.cpu import open_session
from flm.devices.device import EMBEDDING
from flm.errors import BadModelFile, BadRequest, UnsupportedModel
from flm.graph.bundle import Bundle
from flm.graph.emit import Emitter, WeightStore
from flm.graph.layers import Numerics
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from flm.models.compile import prepare
from flm.models.family import Source
from flm.models.gemma3 import tower
from flm.prefix.shown import with_pictures
from flm.runner.eyes import Eyes
from flm.runner.runner import Runner
from flm.text.sight import fitted, inputs
from tests.models import seeing as driven
from tests.models.drive import FIXTURES, Graph, unpacked
from tests.models.seeing import Seeing, eyes_of, runner_of
from tests.models.seen import pictures
from tests.models.seen_gemma3 import PROMPT, TOKENS, as_mmproj, seeing_folder

Logits = npt.NDArray[Any]

EXPECTED = np.load(FIXTURES / "gemma3_seen" / "expected.npz")
EVERY = 4  # of a picture's rows, so many are one that was kept
NUMBERS = range(len(pictures()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seeing_folder(tmp_path_factory.mktemp("gemma"))


@pytest.fixture(scope="module")
def seeing(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing(folder, tmp_path_factory.mktemp("seeing"))


def shown_at(number: int, eyes: Eyes, start: int = 0) -> Placed:
    return driven.shown_at(start, pictures()[number], eyes.sight)


def prompt_of(eyes: Eyes) -> tuple[tuple[int, ...], tuple[Placed, ...]]:
    shown: list[Placed] = []
    for at, each in enumerate(PROMPT):
        if each < 0:
            shown.append(shown_at(-each - 1, eyes, at + len(shown) * (TOKENS - 1)))
    return with_pictures(PROMPT, shown), tuple(shown)


def run(
    runner: Runner, tokens: tuple[int, ...], shown: tuple[Placed, ...], start: int, lane: int = 0
) -> Logits:
    """Of what is behind `start`, in one pass."""
    span = Span(lane, start, tokens[start:], shown)
    return runner.run(Step((span,), prefill=True))[lane].copy()


def decode(runner: Runner, token: int, start: int, shown: tuple[Placed, ...]) -> Logits:
    return runner.run(Step((Span(0, start, (token,), shown),), prefill=False))[0].copy()


@pytest.mark.parametrize("number", NUMBERS)
def test_pixels_are_the_reference_processors(number: int, seeing: Seeing) -> None:
    sight = seeing.eyes.sight
    picture = fitted(pictures()[number], sight, tokens_max=TOKENS, place="it")
    pixels = np.frombuffer(picture.rgb, np.uint8).reshape(48, 48, 3).astype(int)
    assert np.abs(pixels - EXPECTED[f"pixels.{number}"].astype(int)).max() <= 1
    patches = inputs(picture, sight)[PATCHES].reshape(12, 12, 3, 4, 4)
    colours = np.moveaxis(pixels[12:16, 20:24] / 127.5 - 1, -1, 0)
    np.testing.assert_allclose(patches[3, 5], colours, atol=1e-6)


@pytest.mark.parametrize("number", NUMBERS)
def test_rows_are_those_of_transformers(number: int, seeing: Seeing) -> None:
    rows = seeing.eyes.rows(shown_at(number, seeing.eyes))
    assert rows.shape == (TOKENS, 128)
    np.testing.assert_allclose(rows[::EVERY], EXPECTED[f"rows.{number}"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("swapped", [False, True])
def test_an_mmproj_file_gives_the_same_tower(swapped: bool, tmp_path: Path, seeing: Seeing) -> None:
    eyes = eyes_of(
        GgufFile(as_mmproj(tmp_path / "mmproj.gguf", swapped=swapped)), tmp_path, family="gemma3"
    )
    assert eyes.sight == seeing.eyes.sight
    for number in NUMBERS:
        got, wanted = (each.rows(shown_at(number, each)) for each in (eyes, seeing.eyes))
        np.testing.assert_allclose(got, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("from_file", [False, True])
def test_an_mlp_of_no_whole_blocks_is_served_in_8_bits_all_the_same(
    from_file: bool, folder: Path, tmp_path: Path, seeing: Seeing
) -> None:
    source: Source = SafetensorsFolder(folder, quantized=True)
    if from_file:
        source = GgufFile(as_mmproj(tmp_path / "mmproj.gguf"))
    eyes = eyes_of(source, tmp_path, family="gemma3", served=True)
    kinds = Counter(node.op_type for node in onnx.load(tmp_path / "tower.onnx").graph.node)
    assert kinds["Linear"] == 2, "before and behind the layers"
    for number in NUMBERS:
        got, exact = (each.rows(shown_at(number, each)) for each in (eyes, seeing.eyes))
        assert 1e-3 < np.linalg.norm(got - exact) / np.linalg.norm(exact) < 0.03


def test_logits_of_a_prompt_with_pictures_are_those_of_transformers(seeing: Seeing) -> None:
    tokens, shown = prompt_of(seeing.eyes)
    for end, wanted in zip(EXPECTED["ends"], EXPECTED["logits"], strict=True):
        got = seeing.read(tokens[: end + 1], shown, [end + 1])
        np.testing.assert_allclose(got, wanted, atol=1e-4, rtol=0)
    logits, length = seeing.read(tokens, shown, [len(tokens)]), len(tokens)
    for wanted in EXPECTED["greedy"]:
        assert logits.argmax() == wanted
        logits = decode(seeing.runner, int(wanted), length, shown)
        length += 1
    whole = (*tokens, *EXPECTED["greedy"].tolist())
    np.testing.assert_allclose(logits, seeing.read(whole, shown, [length]), atol=1e-4, rtol=0)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(wanted=st.sets(st.integers(2, 170), max_size=6))
def test_any_passes_that_keep_pictures_whole_give_the_same_bits(
    wanted: set[int], seeing: Seeing
) -> None:
    tokens, shown = prompt_of(seeing.eyes)
    ends: list[int] = []
    for end in sorted(wanted):
        whole = not any(each.start < end < each.end for each in shown)
        if whole and end - (ends[-1] if ends else 0) > 1 and end < len(tokens) - 1:
            ends.append(end)
    chunks = [end - start for start, end in pairwise([0, *ends, len(tokens)])]
    once = seeing.read(tokens, shown, [len(tokens)])
    assert np.array_equal(seeing.read(tokens, shown, chunks, lane=1), once)


def test_what_was_read_is_kept_cut_and_gone_on_from_bit_for_bit(seeing: Seeing) -> None:
    tokens, shown = prompt_of(seeing.eyes)
    whole = seeing.read(tokens, shown, [len(tokens)])
    behind = shown[1].end + 1
    first = seeing.runner.save(0, 0, shown[0].end)
    second = seeing.runner.save(0, shown[0].end, behind)
    seeing.runner.restore(1, tokens[:behind], [first, second])
    assert np.array_equal(run(seeing.runner, tokens, shown, behind, 1), whole)
    # Cut before the second picture: another stands there, and then the same again.
    other = shown_at(2, seeing.eyes, shown[1].start)
    elsewhere = (shown[0], other, *shown[2:])
    instead = (*tokens[: other.start], *other.ids, *tokens[other.end :])
    cut = run(seeing.runner, instead, elsewhere, other.start, 1)
    assert np.array_equal(cut, seeing.read(instead, elsewhere, [len(tokens)]))
    assert not np.array_equal(cut, whole)
    assert np.array_equal(run(seeing.runner, tokens, shown, other.start, 1), whole)


@pytest.mark.parametrize("row_dtype", ["float32", "float16"])
def test_text_alone_is_read_bit_for_bit_as_by_a_graph_that_sees_nothing(
    row_dtype: str, folder: Path, tmp_path: Path, seeing: Seeing
) -> None:
    source = SafetensorsFolder(folder)
    (tmp_path / "blind").mkdir()
    blind = Graph(source, tmp_path / "blind", int8_activations=True, row_dtype=row_dtype)
    runner = runner_of(source, tmp_path, Numerics(True, row_dtype, sees=True), seeing.eyes)
    ids = tuple(np.load(FIXTURES / "gemma3" / "expected.npz")["ids"].tolist())
    run(runner, ids[:20], (), 0)
    assert np.array_equal(run(runner, ids, (), 20), blind.read(ids, [20, len(ids) - 20]))
    assert np.array_equal(decode(runner, 300, len(ids), ()), blind.run([300], len(ids))[0])


def test_a_picture_that_is_more_tokens_than_one_may_be_is_refused(seeing: Seeing) -> None:
    with pytest.raises(BadRequest, match="the model reads as 36 tokens, and 35 may be one"):
        fitted(pictures()[0], seeing.eyes.sight, tokens_max=35, place="messages[0]")


def test_a_gguf_file_sees_by_the_tower_beside_it_whatever_it_is_called(tmp_path: Path) -> None:
    file = unpacked(FIXTURES / "gemma3" / "gemma3.Q4_0.gguf", tmp_path / "models")
    as_mmproj(file.with_name("gemma3.mmproj-f32.gguf"))
    bundle = prepare(file, tmp_path / "bundle")
    assert bundle.sight
    assert bundle.sight.whole
    assert Bundle.open(bundle.folder).sight == bundle.sight
    runs = onnx.load(bundle.graph("float16"), load_external_data=False).graph
    assert "views" in {each.name for each in runs.input}


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"projector.scale_factor": 5}, "merges 12 patches a side by 5"),
        ({"projector.scale_factor": 0}, "ZeroDivisionError"),
        ({"attention.head_count": 3}, "3 heads of 64"),
        ({"block_count": 3}, "v.blk.2.ln1.weight is missing"),
        ({"image_size": 40}, "v.position_embd.weight is"),
        ({"image_std": [0.5, 0.0, 0.5]}, "a deviation of"),
    ],
)
def test_an_mmproj_file_that_contradicts_itself_is_refused(
    changed: dict[str, object], word: str, tmp_path: Path
) -> None:
    said = {f"clip.vision.{key}": value for key, value in changed.items()}
    source = GgufFile(as_mmproj(tmp_path / "mmproj.gguf", changed=said))
    with pytest.raises(BadModelFile, match=word):
        eyes_of(source, tmp_path, family="gemma3")


def test_a_tower_that_bends_otherwise_is_left_out(folder: Path) -> None:
    source = SafetensorsFolder(folder, quantized=False)
    vision = source.config["vision_config"]
    source.config = {**source.config, "vision_config": {**vision, "hidden_act": "quick_gelu"}}
    with pytest.raises(UnsupportedModel, match="quick_gelu"):
        tower.shape(source)


def test_what_a_tower_takes_for_a_picture_goes_back(tmp_path: Path, seeing: Seeing) -> None:
    """144 MiB and as much again, here, are what lies between patches and rows."""
    emitter = Emitter(WeightStore(tmp_path / "tower.bin"))
    patches = emitter.input(PATCHES, "float32", ["N", 48])
    (each,) = emitter.op("ReduceMean", [patches, emitter.constant([1])])
    (wide,) = emitter.op("Expand", [each, emitter.constant([1, 2**18])])
    (bent,) = emitter.op("Sin", [wide])
    emitter.op("ReduceMax", [bent, emitter.constant([1])], [EMBEDDING])
    emitter.output(EMBEDDING, "float32", ["N", 1])
    emitter.save(tmp_path / "tower.onnx", "wide")
    session = open_session(str(tmp_path / "tower.onnx"), tmp_path, threads=2)
    eyes = Eyes(session, seeing.eyes.sight, width=1, bytes_max=0)
    before = psutil.Process().memory_info().rss
    assert len(eyes.rows(shown_at(0, eyes))) == 144
    assert psutil.Process().memory_info().rss - before < 64 * 2**20

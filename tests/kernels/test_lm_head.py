"""lm_head: the best of all logits, and of equals the first; the design leaves all logits, too."""

import numpy as np
import pytest

from npu_kernels.golden import golden
from npu_kernels.lm_head import reference
from tests.kernels.host import SANITIZERS, Array, Rig, dispatch, held, needs_compiler, unwritten

FORMATS = {"4 bits": (4, 32), "8 bits": (8, 32), "by 16": (8, 16)}


def run(rig: Rig, logits: Array, from_row: int = 0) -> tuple[float, int]:
    """As a core goes about it, of rows from `from_row` on."""
    best, found = unwritten(32, np.int32), unwritten(32)
    words = from_row + len(logits)
    for number, start in enumerate(range(0, len(logits), 32)):
        part = held(np.pad(logits[start : start + 32], (0, max(start + 32 - len(logits), 0))))
        rig("lm_head", part, best, from_row + start, number, words)
    rig("lm_head_best", best, found)
    assert len(set(found[:16])) == len(set(found[16:])) == 1
    return float(found[0]), int(found[16])


@needs_compiler
@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize("words", [1, 15, 16, 31, 32, 33, 100])
def test_it_is_the_best(sanitize: bool, words: int) -> None:
    random, rig = np.random.default_rng(words), Rig("lm_head", sanitize)
    logits = random.standard_normal(words).astype(np.float32) - 10
    value, row = reference.lm_head(logits)
    assert run(rig, logits) == (value, row)
    assert run(rig, logits, 262_144) == (value, row + 262_144)


@needs_compiler
def test_of_equals_the_first() -> None:
    logits = np.zeros(96, np.float32)
    logits[[40, 41, 57, 90]] = 2
    assert run(Rig("lm_head"), logits) == (2.0, 40)


@needs_compiler
def test_what_is_no_word_never_wins() -> None:
    rig, best, found = Rig("lm_head"), unwritten(32, np.int32), unwritten(32)
    logits = np.full(64, -5, np.float32)
    logits[50:] = 9
    for number in range(2):
        rig("lm_head", held(logits[32 * number :][:32]), best, 32 * number, number, 50)
    rig("lm_head_best", best, found)
    assert (found[0], found[16]) == (-5.0, 0.0)


@pytest.mark.parametrize("words", [1, 100, 128, 1000, 1025, 49_152])
def test_what_the_cores_find_is_the_best_of_all(words: int) -> None:
    logits = np.random.default_rng(words).standard_normal(words).astype(np.float32)
    logits[words // 2 :: words // 2 + 1] = logits.max()  # an equal one, further down
    room = np.full(reference.FOUND, np.nan, np.float32)
    found = reference.found(logits)
    room[: len(found)] = found
    assert reference.best_of(room, words) == reference.lm_head(logits)


def designed(words: int, columns: int, bits: int, block: int) -> None:
    """Logits and what each core has found are exact, and what no column has is not written."""
    rig, sizes = Rig("lm_head"), {"N": words, "K": columns, "BITS": bits, "BLOCK": block}
    vectors = golden("lm_head", "lm_head", sizes)
    x, chunks, *_ = vectors.before
    y, found = unwritten(-(-words // 128) * 128), unwritten(reference.FOUND)
    counters = dispatch(rig, "lm_head", sizes, [x, chunks, y, found])
    exact, candidates = (each.exact for each in vectors.after)
    np.testing.assert_array_equal(y, exact)
    np.testing.assert_array_equal(found[: len(candidates)], candidates)
    assert np.isnan(found[len(candidates) :]).all()
    assert reference.best_of(found, words) == reference.lm_head(exact[:words])
    assert counters.bytes_read == x.nbytes + chunks.nbytes


@needs_compiler
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("words", "columns"), [(50, 288), (300, 256), (1100, 64)])
def test_the_design(form: str, words: int, columns: int) -> None:
    designed(words, columns, *FORMATS[form])


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2:135m", "llama3.2:1b", "qwen3.5:4b"])
def test_real_shapes(model: str) -> None:
    shape = Rig("lm_head").manifest.shapes[model]
    designed(shape["N"], shape["K"], shape["BITS"], shape["BLOCK"])

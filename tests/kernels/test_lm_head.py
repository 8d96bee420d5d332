"""lm_head: the best of all logits, and of equals the first."""

import numpy as np
import pytest

from npu_kernels.lm_head import reference
from tests.kernels.host import SANITIZERS, Array, Rig, held, needs_compiler, unwritten

pytestmark = needs_compiler


def run(rig: Rig, logits: Array, words: int, from_row: int = 0) -> tuple[float, int]:
    best = unwritten(32, np.int32)
    for start in range(0, words, 32):
        part = held(np.pad(logits[start : start + 32], (0, max(start + 32 - len(logits), 0))))
        flags = int(not start), min(words - start, 32), int(start + 32 >= words)
        rig("lm_head", part, best, from_row + start, *flags)
    return float(best.view(np.float32)[0]), int(best[16])


@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize("words", [1, 15, 16, 31, 32, 33, 100])
def test_it_is_the_best(sanitize: bool, words: int) -> None:
    random, rig = np.random.default_rng(words), Rig("lm_head", sanitize)
    logits = random.standard_normal(words).astype(np.float32) - 10
    assert run(rig, logits, words) == reference.lm_head(logits)
    value, row = reference.lm_head(logits)
    assert run(rig, logits, words, 640) == (value, row + 640)


def test_of_equals_the_first() -> None:
    logits = np.zeros(96, np.float32)
    logits[[40, 41, 57, 90]] = 2
    assert run(Rig("lm_head"), logits, 96) == (2.0, 40)


def test_what_is_no_word_never_wins() -> None:
    logits = np.full(64, -5, np.float32)
    logits[50:] = 9
    assert run(Rig("lm_head"), logits, 50) == (-5.0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2:135m", "llama3.2:1b", "qwen3.5:4b"])
def test_real_shapes(model: str) -> None:
    rig = Rig("lm_head")
    logits = np.random.default_rng(1).standard_normal(rig.manifest.shapes[model]["N"])
    assert run(rig, logits.astype(np.float32), len(logits)) == reference.lm_head(
        logits.astype(np.float32)
    )

"""rotary: heads are turned, rows go to their places, and what was there before them stays."""

import numpy as np
import pytest

from npu_kernels.attention.reference import angles, append, rope, rows
from npu_kernels.bf16 import from_bits, to_bits
from tests.kernels.host import SANITIZERS, Array, Rig, dispatch, held, needs_compiler, unwritten

pytestmark = needs_compiler
W, R = 32, 16


def appended(rig: Rig, key: Array, value: Array, block: Array, token: int, first: int) -> Array:
    after = held(block) if token % 16 else unwritten(32 * W, np.uint16)
    rig("rotary_append", held(key), held(value), held(block), after, W, token, first)
    return after


@pytest.mark.parametrize("sanitize", SANITIZERS)
def test_a_row_goes_to_its_place_and_no_other(sanitize: bool) -> None:
    random, rig = np.random.default_rng(1), Rig("rotary", sanitize)
    block = to_bits(random.standard_normal(32 * W).astype(np.float32))
    for token in (0, 5, 16, 31):
        key, value = random.standard_normal((2, W)).astype(np.float32)
        wanted = append(key, value, block, token % 16)
        np.testing.assert_array_equal(appended(rig, key, value, block, token, token), wanted)
        np.testing.assert_array_equal(appended(rig, key, value, block, token, token + 1), block)


def test_a_row_is_what_float16_has_of_it() -> None:
    """A host may keep it in that."""
    random, rig = np.random.default_rng(2), Rig("rotary")
    key, value = (random.standard_normal((2, W)) * 2.0 ** random.integers(-30, 4, (2, W))).astype(
        np.float32
    )
    block = appended(rig, key, value, to_bits(np.zeros(32 * W, np.float32)), 3, 0)
    for given, kept in zip((key, value), rows(block[None], W), strict=True):
        found = from_bits(kept[3])
        np.testing.assert_array_equal(found.astype(np.float16).astype(np.float32), found)
        assert np.abs(found - given).max() <= 2.0**-8 * np.abs(given).max()


@pytest.mark.parametrize("sanitize", SANITIZERS)
def test_heads_are_turned(sanitize: bool) -> None:
    random, rig = np.random.default_rng(3), Rig("rotary", sanitize)
    turn = random.uniform(-np.pi, np.pi, (16, R // 2))
    cos, sin = np.cos(turn).astype(np.float32), np.sin(turn).astype(np.float32)
    beside, lines = unwritten((16, W)), angles(cos, sin, W)
    for number, line in enumerate(lines):
        rig("rotary_hold", held(line), beside, W, number)
    np.testing.assert_array_equal(beside, lines)
    for slot in (0, 7, 15):
        head, y = held(random.standard_normal(W).astype(np.float32)), unwritten(W)
        rig("rotary_turn", head, beside, y, W, R, slot, W)
        rig.check(y, rope(head[None].astype(np.float64), cos[slot], sin[slot])[0])


@pytest.mark.slow
@pytest.mark.parametrize("model", Rig("rotary").manifest.shapes)
def test_the_design_at_real_shapes(model: str) -> None:
    from npu_kernels.golden import closeness, golden

    rig = Rig("rotary")
    parameters = {**rig.manifest.shapes[model], "C": 256}
    vectors = golden("rotary", "rotary", parameters)
    buffers = [held(np.ascontiguousarray(each)) for each in vectors.before]
    dispatch(rig, "rotary", parameters, buffers, **vectors.values)
    for expected in vectors.after:
        buffer = buffers[2 if expected.name == "rows" else 3]
        assert closeness("rotary", expected, buffer).fine, expected.name

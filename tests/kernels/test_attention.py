"""attention: block by block and merged, it is softmax over all rows."""

import numpy as np
import pytest

from npu_kernels.attention import reference
from npu_kernels.bf16 import bits_of, rounded, to_bits
from npu_kernels.rope.reference import blocks
from tests.kernels.host import SANITIZERS, Array, Rig, held, needs_compiler, unwritten

pytestmark = needs_compiler


def state_of(rig: Rig, query: Array, rows: tuple[Array, Array], span: range, scale: float) -> Array:
    """Over the rows of a span: blocks in order, poison where no token is."""
    width = query.shape[1]
    operands, state = unwritten(8 * width, np.uint16), unwritten(4 * width + 64)
    rig("attention_start", query, operands, state, width, bits_of(scale))
    first = span.start // 16 * 16
    padding = [(0, -span.stop % 16), (0, 0)]
    keys, values = (np.pad(to_bits(each[: span.stop]), padding) for each in rows)
    for start, block in zip(
        range(first, span.stop, 16), blocks(keys[first:], values[first:]), strict=True
    ):
        counted = max(span.start - start, 0), min(span.stop - start, 16)
        rig("attention", held(block), operands, state, width, *counted)
    return state


def finished(rig: Rig, state: Array, width: int) -> Array:
    y = unwritten((4, width))
    rig("attention_finish", state, y, width)
    return y


def given(random: np.random.Generator, tokens: int, width: int) -> tuple[Array, Array, Array]:
    query = held(random.standard_normal((4, width)).astype(np.float32))
    keys, values = (rounded(random.standard_normal((tokens, width))) for _ in range(2))
    return query, keys, values


def wanted(query: Array, keys: Array, values: Array, scale: float) -> Array:
    return reference.attention(query.astype(np.float64), keys, values, scale)


@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize("tokens", [1, 8, 9, 16, 50])
def test_it_is_softmax_over_the_rows(sanitize: bool, tokens: int) -> None:
    rig, width = Rig("attention", sanitize), 32
    query, *rows = given(np.random.default_rng(tokens), tokens, width)
    for scale in (0.01, 0.2, 4.0):  # the last lets one row win
        state = state_of(rig, query, (rows[0], rows[1]), range(tokens), scale)
        rig.check(finished(rig, state, width), wanted(query, *rows, scale))


def test_maximums_that_rise_and_fall_far() -> None:
    rig, width, tokens = Rig("attention"), 32, 64
    query, keys, values = given(np.random.default_rng(1), tokens, width)
    size = np.repeat([1.0, 30.0, 0.1, 40.0], 16)[:, None].astype(np.float32)
    rows = rounded(keys * size), values
    state = state_of(rig, query, rows, range(tokens), 1.0)
    rig.check(finished(rig, state, width), wanted(query, *rows, 1.0))


def test_a_window_begins_and_ends_within_a_block() -> None:
    rig, width, scale = Rig("attention"), 32, 0.3
    query, keys, values = given(np.random.default_rng(2), 64, width)
    state = state_of(rig, query, (keys, values), range(21, 59), scale)
    rig.check(finished(rig, state, width), wanted(query, keys[21:59], values[21:59], scale))


@pytest.mark.parametrize("sanitize", SANITIZERS)
def test_spans_merge(sanitize: bool) -> None:
    """In either order, also with a span that has no rows."""
    rig, width, scale = Rig("attention", sanitize), 32, 0.5
    query, *rows = given(np.random.default_rng(3), 70, width)
    pair = rows[0], rows[1]
    spans = [range(32), range(32, 70), range(0)]
    for order in ((0, 1, 2), (2, 1, 0)):
        first, *others = (state_of(rig, query, pair, spans[index], scale) for index in order)
        for other in others:
            rig("attention_merge", other, first, width)
        rig.check(finished(rig, first, width), wanted(query, *rows, scale))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2:135m", "llama3.2:1b", "qwen3.5:4b"])
def test_real_shapes(model: str) -> None:
    rig = Rig("attention")
    width = rig.manifest.shapes[model]["W"]
    query, *rows = given(np.random.default_rng(4), 1000, width)
    scale = width**-0.5
    pair = rows[0], rows[1]
    state = state_of(rig, query, pair, range(512), scale)
    other = state_of(rig, query, pair, range(512, 1000), scale)
    rig("attention_merge", other, state, width)
    rig.check(finished(rig, state, width), wanted(query, *rows, scale))

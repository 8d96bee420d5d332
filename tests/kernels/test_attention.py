"""attention: a token's row lands in its slot, and block by block and merged, it is softmax."""

import numpy as np
import pytest

from npu_kernels.attention import reference
from npu_kernels.bf16 import bits_of, from_bits, rounded, to_bits
from npu_kernels.iron_sim.stream import stream
from npu_kernels.txn.sites import apply, find
from tests.kernels.host import (
    SANITIZERS,
    Array,
    Rig,
    dispatch,
    held,
    needs_compiler,
    record,
    spread,
    unwritten,
)

pytestmark = needs_compiler


def angles(positions: Array, half: int) -> tuple[Array, Array]:
    turned = np.outer(positions, 1e6 ** -(np.arange(half) / half))
    return np.cos(turned).astype(np.float32), np.sin(turned).astype(np.float32)


def token(parts: list[Array], cos: Array, sin: Array) -> Array:
    """A record: four queries, key and value, and the angles [1, half]."""
    return held(np.concatenate([*map(np.ravel, parts), reference.angles(cos, sin)[0]]))


def state_of(rig: Rig, query: Array, rows: tuple[Array, Array], span: range, scale: float) -> Array:
    """Over the rows of a span: blocks in order, poison where no token is."""
    width = query.shape[1]
    operands, state = unwritten(8 * width, np.uint16), unwritten(4 * width + 64)
    none = np.zeros((1, 0), np.float32)
    given = token([query, np.zeros(2 * width, np.float32)], none, none)
    rig("attention_start", given, operands, state, width, 0, bits_of(scale))
    padding = [(0, -span.stop % 16), (0, 0)]
    keys, values = (np.pad(to_bits(each[: span.stop]), padding) for each in rows)
    for number, block in enumerate(reference.blocks(keys, values)):
        if number >= span.start // 16:
            rig("attention", held(block), operands, state, width, number, span.start, span.stop)
    return state


def finished(rig: Rig, state: Array, width: int, heads: int = 4) -> Array:
    y = unwritten((heads, width))
    rig("attention_finish", state, y, width, heads)
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
    """In either order, also with a span that has no rows; of two heads only."""
    rig, width, scale = Rig("attention", sanitize), 32, 0.5
    query, *rows = given(np.random.default_rng(3), 70, width)
    pair = rows[0], rows[1]
    spans = [range(32), range(32, 70), range(0)]
    for order in ((0, 1, 2), (2, 1, 0)):
        first, *others = (state_of(rig, query, pair, spans[index], scale) for index in order)
        for other in others:
            rig("attention_merge", other, first, width)
        rig.check(finished(rig, first, width, 2), wanted(query, *rows, scale)[:2])


@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize(("width", "rotary"), [(64, 64), (64, 32), (64, 16)])
def test_queries_are_turned(sanitize: bool, width: int, rotary: int) -> None:
    """As the operands say: high and low parts."""
    random, rig = np.random.default_rng(4), Rig("attention", sanitize)
    query, rest = spread(random, 4, width), np.zeros(2 * width, np.float32)
    for position in (0, 1, 4095, 262143):
        cos, sin = angles(np.array([position]), rotary // 2)
        operands, state = unwritten(8 * width, np.uint16), unwritten(4 * width + 64)
        sizes = width, rotary, bits_of(0.5)
        rig("attention_start", token([query, rest], cos, sin), operands, state, *sizes)
        parts = from_bits(operands).reshape(width // 8, 2, 4, 8).sum(axis=1)
        turned = reference.rope(query.astype(np.float64), cos[0], sin[0])
        rig.check(parts.transpose(1, 0, 2).reshape(4, width), turned / 2)


def test_blocks_and_rows_are_inverse() -> None:
    random = np.random.default_rng(2)
    keys, values = (random.integers(0, 2**16, (48, 64), np.uint16) for _ in range(2))
    blocks = reference.blocks(keys, values)
    for got, exact in zip(reference.rows(blocks, 64), (keys, values), strict=True):
        np.testing.assert_array_equal(got, exact)
    assert blocks[1][:8].tolist() == keys[16:24, 0].tolist()  # eight tokens of one dimension
    assert blocks[0][1024:1032].tolist() == values[0, :8].tolist()


@pytest.mark.parametrize("sanitize", SANITIZERS)
def test_a_row_lands_in_its_slot(sanitize: bool) -> None:
    """And nowhere else; position 0 turns nothing."""
    random, rig, width = np.random.default_rng(3), Rig("attention", sanitize), 32
    before = held(to_bits(random.standard_normal(32 * width)))
    cos, sin = angles(np.zeros(1), 16)
    for tokens in (1, 8, 9, 16, 48):
        row, after = spread(random, 2, width), unwritten(32 * width, np.uint16)
        parts = [np.zeros(4 * width, np.float32), row]
        rig("attention_append", token(parts, cos, sin), before, after, width, 32, tokens)
        exact = reference.append(*row, before, (tokens - 1) % 16)
        np.testing.assert_array_equal(from_bits(after), from_bits(exact))


def values_at(position: int) -> dict[str, int]:
    return {"position": position, "block": position // 16, "rounds": position // 64 + 1}


def designed(sizes: tuple[int, int, int, int, int], *positions: int, window: int = 0) -> None:
    """The design at these positions: what is stored, and what is attended to."""
    heads, kv_heads, width, rotary, capacity = sizes
    random, rig, scale = np.random.default_rng(5), Rig("attention"), width**-0.5
    cos, sin = angles(np.arange(capacity), rotary // 2)
    parameters = dict(zip(("HEADS", "KV_HEADS", "W", "R", "C"), sizes, strict=True))
    parameters |= {"SCALE": bits_of(scale), "WINDOW": window}
    for position in positions:
        old = random.standard_normal((2, kv_heads, capacity, width)).astype(np.float32)
        old[:, :, position:] = 0
        rows = np.stack([reference.blocks(*map(to_bits, pair)) for pair in old.swapaxes(0, 1)])
        qkv = random.standard_normal((heads + 2 * kv_heads, width)).astype(np.float32)
        y = unwritten((heads, width))
        buffers = [qkv.reshape(-1), reference.angles(cos, sin), rows, y]
        dispatch(rig, "attention", parameters, buffers, **values_at(position))
        exact = reference.rope(
            qkv[: heads + kv_heads].astype(np.float64), cos[position], sin[position]
        )
        for head in range(kv_heads):
            keys, values = map(from_bits, reference.rows(rows[head], width))
            others = np.arange(capacity) != position
            np.testing.assert_array_equal(keys[others], rounded(old[0, head])[others])
            np.testing.assert_array_equal(values[others], rounded(old[1, head])[others])
            np.testing.assert_array_equal(values[position], rounded(qkv[heads + kv_heads + head]))
            np.testing.assert_allclose(keys[position], exact[heads + head], rtol=2**-7, atol=1e-6)
            mine = slice(head * heads // kv_heads, (head + 1) * heads // kv_heads)
            since = max(0, position + 1 - window) if window else 0
            there = keys[since : position + 1], values[since : position + 1]
            rig.check(y[mine], reference.attention(exact[mine], *there, scale))


@pytest.mark.parametrize(
    ("sizes", "positions"),
    [
        pytest.param((8, 2, 32, 32, 128), (0, 15, 16, 63, 64, 127), id="positions"),
        pytest.param((6, 2, 64, 16, 64), (37,), id="three heads, part of them turned"),
        pytest.param((20, 10, 32, 32, 64), (20,), id="more KV heads than columns"),
    ],
)
def test_designs_run(sizes: tuple[int, int, int, int, int], positions: tuple[int, ...]) -> None:
    designed(sizes, *positions)


@pytest.mark.parametrize("window", [1, 5, 16, 70])
def test_a_window_begins_in_any_block_of_any_core(window: int) -> None:
    designed((4, 1, 32, 32, 128), 0, 16, 20, 63, 64, 127, window=window)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2:135m", "llama3.2:1b", "qwen3.5:4b"])
def test_designs_at_real_shapes(model: str) -> None:
    shape = Rig("attention").manifest.shapes[model]
    sizes = shape["HEADS"], shape["KV_HEADS"], shape["W"], shape["R"], 1024
    designed(sizes, 0, 999)


def test_values_enter_the_stream_each_for_itself() -> None:
    sizes = {
        "HEADS": 8,
        "KV_HEADS": 2,
        "W": 32,
        "R": 32,
        "C": 1024,
        "SCALE": bits_of(0.1),
        "WINDOW": 32,
    }
    rig, least = Rig("attention"), values_at(0)

    def words(**values: int) -> Array:
        return stream(record(rig, "attention", sizes, **values))

    patched, enclosing = words(**least), {"position": 1023, "block": 63, "rounds": 16}
    for name, most in enclosing.items():
        seen = {value: words(**{**least, name: value}) for value in (least[name], most // 2, most)}
        patched = apply(patched, find(seen), values_at(777)[name])
    np.testing.assert_array_equal(patched, words(**values_at(777)))

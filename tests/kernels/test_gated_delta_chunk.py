"""gated_delta_chunk: 32 tokens at once give what they give one after another."""

import numpy as np
import pytest

from npu_kernels.bf16 import bits_of, rounded
from npu_kernels.columns import columns_of
from npu_kernels.gated_delta import reference as one_by_one
from npu_kernels.gated_delta_chunk.reference import TOKENS, constants, gated_delta_chunk
from tests.kernels.host import SANITIZERS, Array, Rig, dispatch, held, needs_compiler, unwritten


class Tokens:
    """Of one head."""

    def __init__(self, random: np.random.Generator, width: int, alike: float = 0) -> None:
        """alike: how much all keys have in common."""
        self.query, self.key, self.value = random.standard_normal((3, TOKENS, width))
        self.key += alike * random.standard_normal(width)
        for each in (self.query, self.key):
            each /= np.linalg.norm(each, axis=1, keepdims=True)
        self.a, self.b = random.standard_normal((2, TOKENS)) * 2
        self.bias, self.rate = random.standard_normal(), -np.exp(random.uniform(-6, 1))
        self.scale = width**-0.5

    def exact(self, state: Array) -> tuple[Array, Array]:
        """Token by token."""
        decay, beta = one_by_one.gates(self.a, self.b, np.array(self.bias), np.array(self.rate))
        y = np.empty_like(self.value)
        for t in range(TOKENS):
            row = (each[None, t] for each in (self.query, self.key, self.value, decay, beta))
            out, after = one_by_one.gated_delta(*row, state[None], self.scale)
            y[t], state = out[0], after[0]
        return y, state


def opened(rig: Rig, heads: list[Tokens]) -> Array:
    """Gates of up to 16 heads."""
    a, b = np.zeros((2, TOKENS, 16), np.float32)
    for lane, head in enumerate(heads):
        a[:, lane], b[:, lane] = head.a, head.b
    bias, rate = (np.array([getattr(h, name) for h in heads]) for name in ("bias", "rate"))
    parts, out = [constants(bias, rate, 1)[0], a, b], unwritten(1056)
    for turn, part in enumerate(parts):
        rig("gated_delta_chunk_gates", held(part), out, turn)
    return out


def run(rig: Rig, given: Tokens, state: Array) -> Array:
    """y [tokens, width]; state, in slices, is changed."""
    width = given.value.shape[1]
    operands, factors = unwritten(64 * width + 4096, np.uint16), unwritten(80)
    rows = np.concatenate([given.key, given.query]).astype(np.float32).reshape(-1, 512)
    for number, part in enumerate(rows):
        first = number * 512 // width
        factor = bits_of(1 if first < TOKENS else given.scale)
        rig("gated_delta_rows", held(part), operands, width, first, factor)
    rig("gated_delta_prepare", opened(rig, [given]), operands, factors, width, 0)
    y = np.empty((TOKENS, width), np.float32)
    for number, before in enumerate(state):
        columns = slice(16 * number, 16 * number + 16)
        values = held(given.value[:, columns].astype(np.float32))
        after, out = unwritten(before.shape), unwritten((TOKENS, 16))
        rig("gated_delta_chunk", operands, factors, values, held(before), after, out, width)
        y[:, columns], state[number] = out, after
    return y


@pytest.mark.parametrize("alike", [0, 3, 1000])
def test_the_reference_is_token_by_token(alike: float) -> None:
    random, width = np.random.default_rng(1), 48
    given, state = Tokens(random, width, alike), random.standard_normal((width, width))
    decay, beta = one_by_one.gates(given.a, given.b, np.array(given.bias), np.array(given.rate))
    vectors = given.query, given.key, given.value
    y, after = gated_delta_chunk(*vectors, np.log(decay), beta, state, given.scale)
    exact, following = given.exact(state)
    np.testing.assert_allclose(y, exact, atol=1e-10)
    np.testing.assert_allclose(after, following, atol=1e-10)


@needs_compiler
def test_gates_of_some_heads() -> None:
    random, rig = np.random.default_rng(6), Rig("gated_delta_chunk")
    heads = [Tokens(random, 16) for _ in range(3)]
    got = opened(rig, heads)[:1024].reshape(2, TOKENS, 16)
    for lane, head in enumerate(heads):
        bias, rate = (np.array(each) for each in (head.bias, head.rate))
        decay, beta = one_by_one.gates(head.a, head.b, bias, rate)
        np.testing.assert_allclose(got[0, :, lane], np.cumsum(np.log(decay)), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(got[1, :, lane], beta, rtol=1e-4)


@needs_compiler
@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize("alike", [0, 3, 1000])
def test_chunks_after_one_another(sanitize: bool, alike: float) -> None:
    """Also where all keys are nearly one."""
    random, rig, width = np.random.default_rng(2), Rig("gated_delta_chunk", sanitize), 32
    exact = random.standard_normal((width, width))
    mine = one_by_one.pack(exact[None].astype(np.float32))[0]
    for _ in range(1 if sanitize else 4):
        given = Tokens(random, width, alike)
        y = run(rig, given, mine)
        out, exact = given.exact(exact)
        rig.check(y, out)
        rig.check(one_by_one.unpack(mine[None])[0], exact)


@needs_compiler
def test_only_rounding_keys_and_queries_costs_anything() -> None:
    """What bfloat16 holds gives nearly what it should."""
    random, rig, width = np.random.default_rng(5), Rig("gated_delta_chunk"), 64
    given, state = Tokens(random, width, 3), random.standard_normal((width, width))
    given.key, given.query = (rounded(each.astype(np.float32)) for each in (given.key, given.query))
    mine = one_by_one.pack(state[None].astype(np.float32))[0]
    y, (out, exact) = run(rig, given, mine), given.exact(state)
    for got, wanted in ((y, out), (one_by_one.unpack(mine[None])[0], exact)):
        assert np.abs(got - wanted).max() <= 1e-4 * np.abs(wanted).max()


@needs_compiler
def test_tokens_beyond_the_end_change_nothing() -> None:
    """That follow nothing and let nothing fall: so is a chunk filled up."""
    random, rig, width = np.random.default_rng(3), Rig("gated_delta_chunk"), 32
    given, state = Tokens(random, width), random.standard_normal((1, width, width))
    given.a[:], given.b[:] = -1e4, -1e4
    mine = one_by_one.pack(state.astype(np.float32))[0]
    before = mine.copy()
    run(rig, given, mine)
    np.testing.assert_allclose(mine, before, rtol=1e-6)


@needs_compiler
@pytest.mark.parametrize(
    ("keys", "heads", "width"),
    [(2, 4, 32), (4, 8, 64), pytest.param(16, 32, 128, marks=pytest.mark.slow)],
)
def test_the_design(keys: int, heads: int, width: int) -> None:
    """A chunk after another, over a state that stays where it is."""
    random, rig = np.random.default_rng(keys), Rig("gated_delta_chunk")
    exact = random.standard_normal((heads, width, width))
    state = held(one_by_one.pack(exact.astype(np.float32)))
    bias, rate = random.standard_normal(heads), -np.exp(random.uniform(-6, 1, heads))
    packed = held(constants(bias, rate, columns_of(keys)))
    parameters = {"KH": keys, "H": heads, "W": width, "SCALE": bits_of(width**-0.5)}
    for _ in range(2):
        given = [Tokens(random, width) for _ in range(heads)]
        for number, each in enumerate(given):
            shared = given[number - number % (heads // keys)]
            each.query, each.key = shared.query, shared.key
            each.bias, each.rate = bias[number], rate[number]
        of_keys = given[:: heads // keys]
        rows = [
            np.stack([each.query for each in of_keys], axis=1),
            np.stack([each.key for each in of_keys], axis=1),
            np.stack([each.value for each in given], axis=1),
            np.stack([each.a for each in given], axis=1),
            np.stack([each.b for each in given], axis=1),
            np.zeros(16),
        ]
        inputs = held(np.concatenate([each.ravel() for each in rows]).astype(np.float32))
        y = unwritten((TOKENS, heads, width))
        counters = dispatch(rig, "gated_delta_chunk", parameters, [inputs, packed, state, y])
        after = [each.exact(before) for each, before in zip(given, exact, strict=True)]
        exact = np.stack([each[1] for each in after])
        rig.check(y, np.stack([each[0] for each in after], axis=1))
        rig.check(one_by_one.unpack(state), exact)
        assert counters.bytes_written == state.nbytes + y.nbytes  # once each


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("sanitize", [False, True])
def test_real_shapes(sanitize: bool) -> None:
    """A head of qwen3.5:4b, over a prompt of 256 tokens."""
    random, rig = np.random.default_rng(4), Rig("gated_delta_chunk", sanitize)
    width = rig.manifest.shapes["qwen3.5:4b"]["W"]
    exact = np.zeros((width, width))
    mine = one_by_one.pack(exact[None].astype(np.float32))[0]
    for _ in range(1 if sanitize else 8):
        given = Tokens(random, width, 1)
        y = run(rig, given, mine)
        out, exact = given.exact(exact)
        rig.check(y, out)
        rig.check(one_by_one.unpack(mine[None])[0], exact)

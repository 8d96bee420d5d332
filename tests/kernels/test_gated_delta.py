"""gated_delta: gates, outputs and state are the reference's, also after many tokens."""

import numpy as np
import pytest

from npu_kernels.bf16 import bits_of
from npu_kernels.gated_delta import reference
from tests.kernels.host import (
    SANITIZERS,
    Array,
    Rig,
    dispatch,
    held,
    needs_compiler,
    spread,
    unwritten,
)

pytestmark = needs_compiler


def run_gates(rig: Rig, a: Array, b: Array, bias: Array, rate: Array) -> Array:
    gates = unwritten((len(a), 16))
    given = held(np.concatenate([np.full(16, np.nan, np.float32), a, b, bias, rate]))
    rig("gated_delta_gates", given, gates, 16, len(a))
    return gates


def run(rig: Rig, qkv: list[Array], gates: Array, state: Array, scale: float) -> Array:
    """y [heads, width]; query and key are the key heads', state, in slices, is changed."""
    (keys, width), heads = qkv[0].shape, len(qkv[2])
    vectors, y = held(np.concatenate([each.ravel() for each in qkv])), unwritten((heads, width))
    for head in range(heads):
        for number in range(width // reference.COLUMNS):
            before, after = held(state[head, number]), unwritten((width, reference.COLUMNS))
            places = keys, head * keys // heads, head, head, number
            rig("gated_delta", vectors, gates, before, after, y, width, *places, bits_of(scale))
            state[head, number] = after
    return y


def token(random: np.random.Generator, keys: int, heads: int, width: int) -> list[Array]:
    query, key = random.standard_normal((2, keys, width)).astype(np.float32)
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (query, key)]
    return [*unit, random.standard_normal((heads, width)).astype(np.float32)]


def wanted(
    qkv: list[Array], decay: Array, beta: Array, state: Array, scale: float
) -> tuple[Array, Array]:
    query, key, value = (each.astype(np.float64) for each in qkv)
    both = (np.repeat(each, len(value) // len(each), axis=0) for each in (query, key))
    return reference.gated_delta(*both, value, decay, beta, state, scale)


@pytest.mark.parametrize("sanitize", SANITIZERS)
def test_gates_each_on_its_own(sanitize: bool) -> None:
    rig, n = Rig("gated_delta", sanitize), 64
    a, b = np.linspace(-30, 30, n), np.linspace(25, -25, n)
    bias, rate = np.linspace(-3, 3, n), -np.exp(np.linspace(-6, 0, n))
    single = [each.astype(np.float32) for each in (a, b, bias, rate)]
    gates = run_gates(rig, *single)
    decay, beta = reference.gates(*(each.astype(np.float64) for each in single))
    np.testing.assert_allclose(gates[:, 0], decay, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(gates[:, 1], beta, rtol=1e-4)
    np.testing.assert_array_equal(gates[:, 2:], 0)


@pytest.mark.parametrize("sanitize", SANITIZERS)
def test_a_token_after_another(sanitize: bool) -> None:
    random, rig, heads, width = np.random.default_rng(1), Rig("gated_delta", sanitize), 2, 32
    state = random.standard_normal((heads, width, width)).astype(np.float32)
    exact, mine, scale = state.astype(np.float64), reference.pack(state), width**-0.5
    for _ in range(2 if sanitize else 200):
        qkv, gates = token(random, 1, heads, width), held(np.zeros((heads, 16), np.float32))
        gates[:, :2] = random.uniform((0.99, 0), 1, (heads, 2))
        y, exact = wanted(qkv, gates[:, 0], gates[:, 1], exact, scale)
        rig.check(run(rig, qkv, gates, mine, scale), y)
        rig.check(reference.unpack(mine), exact)


def test_unpack_is_the_inverse_of_pack() -> None:
    state = spread(np.random.default_rng(2), 3, 64, 64)
    np.testing.assert_array_equal(reference.unpack(reference.pack(state)), state)
    np.testing.assert_array_equal(reference.pack(state)[1, 2], state[1, :, 32:48])


@pytest.mark.parametrize(
    ("keys", "heads", "width"),
    [(2, 2, 64), (4, 8, 32), pytest.param(16, 32, 128, marks=pytest.mark.slow)],
)
def test_the_design(keys: int, heads: int, width: int) -> None:
    """A token after another, over a state that stays where it is."""
    random, rig, scale = np.random.default_rng(keys), Rig("gated_delta"), width**-0.5
    bias, rate = spread(random, heads), held(-np.exp(random.uniform(-6, 0, heads)))
    exact = random.standard_normal((heads, width, width))
    state = held(reference.pack(exact.astype(np.float32)))
    constants = held(reference.together(bias, rate.astype(np.float32)))
    parameters = {"KH": keys, "H": heads, "W": width, "SCALE": bits_of(scale)}
    for _ in range(2):
        qkv, a, b = token(random, keys, heads, width), spread(random, heads), spread(random, heads)
        gates = reference.together(a, b)
        inputs = held(np.concatenate([*(each.ravel() for each in qkv), gates]))
        y = unwritten((heads, width))
        counters = dispatch(rig, "gated_delta", parameters, [inputs, constants, state, y])
        opened = reference.gates(*(each.astype(np.float64) for each in (a, b, bias)), rate)
        out, exact = wanted(qkv, *opened, exact, scale)
        rig.check(y, out)
        rig.check(reference.unpack(state), exact)
        assert counters.bytes_written == state.nbytes + y.nbytes  # once each

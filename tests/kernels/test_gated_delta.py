"""gated_delta: gates, outputs and state are the reference's, also after many tokens."""

import numpy as np
import pytest

from npu_kernels.bf16 import bits_of
from npu_kernels.gated_delta import reference
from tests.kernels.host import SANITIZERS, Array, Rig, held, needs_compiler, spread, unwritten

pytestmark = needs_compiler


def run_gates(rig: Rig, a: Array, b: Array, bias: Array, rate: Array) -> Array:
    gates = unwritten((len(a), 16))
    given = [held(np.concatenate(each)) for each in ((a, b), (bias, rate))]
    rig("gated_delta_gates", *given, gates, len(a))
    return gates


def run(rig: Rig, qkv: list[Array], gates: Array, state: Array, scale: float) -> Array:
    """y [heads, width]; state, in slices, is changed."""
    heads, width = qkv[0].shape
    y = unwritten((heads, width))
    for head in range(heads):
        vectors = held(np.concatenate([*(each[head] for each in qkv), gates[head]]))
        row = unwritten(width)
        for number in range(width // reference.COLUMNS):
            after = unwritten((width, reference.COLUMNS))
            before = held(state[head, number])
            rig("gated_delta", vectors, before, after, row, width, number, bits_of(scale))
            state[head, number] = after
        y[head] = row
    return y


def token(random: np.random.Generator, heads: int, width: int) -> list[Array]:
    query, key, value = random.standard_normal((3, heads, width)).astype(np.float32)
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (query, key)]
    return [held(each) for each in (*unit, value)]


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
    exact, mine, scale = state.astype(np.float64), reference.slices(state), width**-0.5
    for _ in range(2 if sanitize else 200):
        qkv, gates = token(random, heads, width), np.zeros((heads, 16), np.float32)
        gates[:, :2] = random.uniform((0.99, 0), 1, (heads, 2))
        y, exact = reference.gated_delta(
            *(each.astype(np.float64) for each in qkv), gates[:, 0], gates[:, 1], exact, scale
        )
        rig.check(run(rig, qkv, gates, mine, scale), y)
        rig.check(reference.whole(mine), exact)


def test_slices_are_whole() -> None:
    state = spread(np.random.default_rng(2), 3, 64, 64)
    np.testing.assert_array_equal(reference.whole(reference.slices(state)), state)
    np.testing.assert_array_equal(reference.slices(state)[1, 2], state[1, :, 32:48])


@pytest.mark.slow
def test_real_shapes() -> None:
    random, rig = np.random.default_rng(3), Rig("gated_delta")
    heads, width = 4, rig.manifest.shapes["qwen3.5:4b"]["W"]
    state = random.standard_normal((heads, width, width)).astype(np.float32)
    qkv, gates = token(random, heads, width), np.zeros((heads, 16), np.float32)
    gates[:, :2] = random.uniform((0.9, 0), 1, (heads, 2))
    y, exact = reference.gated_delta(
        *(each.astype(np.float64) for each in qkv), gates[:, 0], gates[:, 1], state, width**-0.5
    )
    mine = reference.slices(state)
    rig.check(run(rig, qkv, gates, mine, width**-0.5), y)
    rig.check(reference.whole(mine), exact)

"""A sampler draws from exactly the distribution its request describes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flm.core.request import Request, SamplingParams
from flm.engine.logits import Counts, processors_for
from flm.engine.sampler import Sampler, draw, nucleus
from flm.errors import DeviceFailed
from tests.engine.rig import prompt_of

LOGITS = np.random.default_rng(1).normal(scale=3, size=4000).astype(np.float32)


def request(prompt: tuple[int, ...] = (1,), **params) -> Request:
    return Request("a", prompt_of(prompt), SamplingParams(**params), 10)


def kept(**params) -> np.ndarray:
    """Tokens that can be drawn, as a mask over the vocabulary: every rung of the ladder."""
    sampling = SamplingParams(**params)
    uniforms = (np.arange(20_000) + 0.5) / 20_000
    drawn = {draw(LOGITS, float(LOGITS.max()), sampling, uniform) for uniform in uniforms}
    return np.isin(np.arange(len(LOGITS)), list(drawn))


def probabilities(temperature: float) -> np.ndarray:
    weights = np.exp((LOGITS.astype(np.float64) - LOGITS.max()) / temperature)
    return weights / weights.sum()


def test_temperature_zero_is_greedy_and_draws_nothing() -> None:
    sampler = Sampler(request(temperature=0, top_p=0.1, seed=3))
    assert {sampler([1], LOGITS) for _ in range(5)} == {int(LOGITS.argmax())}


def test_the_uniform_walks_the_distribution() -> None:
    logits = np.log(np.array([0.1, 0.2, 0.7], np.float32))
    edges = [(0.0, 0), (0.0999, 0), (0.101, 1), (0.299, 1), (0.301, 2), (0.99999999, 2)]
    for uniform, token in edges:
        assert draw(logits, float(logits.max()), SamplingParams(), uniform) == token


def test_top_k_keeps_the_k_likeliest() -> None:
    assert set(np.flatnonzero(kept(top_k=7, temperature=5.0))) == set(np.argsort(-LOGITS)[:7])


def test_min_p_keeps_what_is_likely_against_the_likeliest() -> None:
    p = probabilities(2.0)
    expected = p >= 0.2 * p.max()
    np.testing.assert_array_equal(kept(min_p=0.2, temperature=2.0), expected)


def test_top_p_counts_within_top_k() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    params = SamplingParams(top_k=2, top_p=0.5)  # 4/7 of what top-k leaves is enough
    assert {draw(logits, float(logits.max()), params, u) for u in (0.0, 0.5, 0.99)} == {0}


@given(
    scale=st.sampled_from([0.0, 0.1, 1.0, 4.0, 20.0]),
    size=st.sampled_from([1, 2, 50, 300, 5000]),
    top_p=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 99),
)
def test_the_nucleus_is_the_smallest_that_holds_top_p(scale, size, top_p, seed) -> None:
    logits = np.random.default_rng(seed).normal(scale=scale, size=size).astype(np.float32)
    weights = np.exp(logits - logits.max())
    found = nucleus(weights, top_p)
    assert len(set(found.tolist())) == len(found) >= 1
    held, total = weights[found].astype(np.float64), weights.sum(dtype=np.float64)
    assert held.sum() >= top_p * total * (1 - 1e-6)
    assert held.sum() - held.min() <= top_p * total * (1 + 1e-6) or len(found) == 1
    rest = np.delete(weights, found)
    assert not len(rest) or rest.max() <= held.min()


def test_frequencies_follow_the_distribution() -> None:
    sampler = Sampler(request(temperature=2.0, top_k=5, seed=7))
    drawn = np.array([sampler([1], LOGITS) for _ in range(4000)])
    best = np.argsort(-LOGITS)[:5]
    expected = probabilities(2.0)[best] / probabilities(2.0)[best].sum()
    found = np.array([(drawn == token).mean() for token in best])
    np.testing.assert_allclose(found, expected, atol=0.03)


def test_a_seed_repeats_and_no_seed_does_not() -> None:
    def stream(**params) -> list[int]:
        sampler = Sampler(request(temperature=3.0, **params))
        return [sampler([1], LOGITS) for _ in range(20)]

    assert stream(seed=5) == stream(seed=5) != stream(seed=6)
    assert stream() != stream()


def test_the_model_s_logits_stay_as_they_are() -> None:
    before = LOGITS.copy()
    params = {"logit_bias": {3: 9.0}, "repetition_penalty": 2.0, "presence_penalty": 1.0}
    Sampler(request(temperature=1.0, top_p=0.5, **params))([1, 5], LOGITS)
    np.testing.assert_array_equal(LOGITS, before)


def test_penalties_are_what_their_inventors_wrote() -> None:
    """repetition over prompt and reply, presence and frequency over the reply alone."""
    asked = request((1, 2), repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    logits = np.array([1.0, 4.0, -1.0, 2.0, 3.0], np.float32)
    for process in processors_for(asked):
        logits = process([1, 2, 3, 3], logits)
    np.testing.assert_allclose(logits, [1.0, 2.0, -2.0, 1.0 - 0.5 - 2 * 0.25, 3.0])


def test_what_a_grammar_holds_may_say_what_the_prompt_says() -> None:
    class Anything:
        def open(self) -> "Anything":
            return self

        def take(self, tokens: Sequence[int]) -> None:
            pass

        def allowed(self) -> bytes:
            return b"\xff"

    asked = replace(request((1, 2), repetition_penalty=2.0), grammar=Anything())
    logits = np.array([1.0, 4.0, -1.0, 2.0, 3.0], np.float32)
    for process in processors_for(asked):
        logits = process([1, 2, 3, 3], logits)
    np.testing.assert_allclose(logits, [1.0, 4.0, -1.0, 1.0, 3.0])


def test_bias_adds_to_its_tokens() -> None:
    asked = request(temperature=0, logit_bias={17: 100.0})
    assert Sampler(asked)([1], LOGITS) == 17


@given(
    tokens=st.lists(st.integers(0, 9), min_size=1, max_size=60),
    start=st.integers(0, 20),
    window=st.none() | st.integers(1, 12),
    data=st.data(),
)
def test_counts_are_those_of_the_window_however_often_one_looks(
    tokens, start, window, data
) -> None:
    start = min(start, len(tokens))
    counts = Counts(start, window)
    looks = data.draw(st.lists(st.integers(start, len(tokens)), max_size=5).map(sorted))
    for end in [*looks, len(tokens)]:
        seen = tokens[start:end]
        if window is not None:
            seen = seen[-window:]
        ids, times = counts(tokens[:end], 10)
        assert dict(zip(ids.tolist(), times.tolist(), strict=True)) == {
            token: seen.count(token) for token in set(seen)
        }


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_logits_that_are_not_numbers_are_the_device_s_failure(value, temperature) -> None:
    logits = np.full(100, value if value == -np.inf else 0, np.float32)
    logits[40] = value
    with pytest.raises(DeviceFailed, match="the model gave"):
        Sampler(request(temperature=temperature))([1], logits)


def test_a_token_without_any_chance_is_no_failure() -> None:
    logits = LOGITS.copy()
    logits[5:] = -np.inf
    assert Sampler(request(temperature=1.0, top_p=0.9, seed=1))([1], logits) < 5

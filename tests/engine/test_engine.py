"""What a request may rely on, whatever else the engine is at."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from flm.core.event import FinishReason, Generated
from flm.core.request import SamplingParams
from flm.engine.logits import report
from tests.engine.rig import (
    CONVERSATION,
    HEAD,
    STATELESS,
    TAIL,
    TOKENIZER,
    TURN,
    Rig,
    forced,
    layouts,
    prompt_of,
    request_of,
    some_tokens,
)

# How a reply ends


def test_a_reply_ends_at_max_tokens(tmp_path) -> None:
    rig = Rig(tmp_path)
    rig.run(request_of("a", CONVERSATION, max_tokens=7))
    assert rig.finished("a").reason is FinishReason.LENGTH
    assert rig.finished("a").usage.completion_tokens == len(rig.tokens("a")) == 7


def test_a_reply_ends_where_the_context_does(tmp_path) -> None:
    rig = Rig(tmp_path)
    rig.run(request_of("a", some_tokens(1, 250), max_tokens=100))
    assert rig.finished("a").reason is FinishReason.LENGTH
    assert len(rig.tokens("a")) == 6


def test_a_reply_ends_at_the_model_s_word_unless_told_to_ignore_it(tmp_path) -> None:
    (eos, *_) = TOKENIZER.eos_ids
    words = TOKENIZER.encode("the end")
    rig = Rig(tmp_path, sampler_for=forced(a=[*words, eos], b=[*words, eos, words[0]]))
    rig.run(
        request_of("a", HEAD, ignore_eos=False, max_tokens=9),
        request_of("b", TAIL, max_tokens=len(words) + 2),
    )
    assert rig.finished("a").reason is FinishReason.STOP
    assert rig.text("a") == "the end"
    assert rig.tokens("a") == words, "the end token is not shown"
    assert rig.finished("a").usage.completion_tokens == len(words) + 1
    assert rig.finished("b").reason is FinishReason.LENGTH
    assert rig.text("b") == "the endthe"


def test_a_stop_string_ends_a_reply_and_is_not_shown(tmp_path) -> None:
    words = TOKENIZER.encode("one two three four")
    rig = Rig(tmp_path, sampler_for=forced(a=words, b=words))
    rig.run(
        request_of("a", HEAD, stop=("o th",), max_tokens=50),
        request_of("b", TAIL, stop=("four, five",), max_tokens=len(words)),
    )
    assert rig.text("a") == "one tw"
    assert rig.finished("a").reason is FinishReason.STOP_STRING
    assert rig.text("b") == "one two three four", "what was held back comes with the end"
    assert rig.finished("b").text


def test_half_a_character_is_never_shown(tmp_path) -> None:
    emoji = TOKENIZER.encode("a🙂")
    rig = Rig(tmp_path, sampler_for=forced(a=emoji, b=emoji[:-1]))
    rig.run(request_of("a", HEAD, max_tokens=len(emoji)))
    rig.run(request_of("b", TAIL, max_tokens=len(emoji) - 1))
    assert rig.text("a") == "a🙂"
    shown = [event.text for event in rig.of("b") if isinstance(event, Generated)]
    assert "".join(shown) == "a"


def test_logprobs_are_the_model_s_own_whatever_was_sampled(tmp_path) -> None:
    plain, bent = Rig(tmp_path), Rig(tmp_path)
    params = SamplingParams(temperature=0, logprobs=3)
    plain.run(request_of("a", HEAD, sampling=params, max_tokens=1))
    (said,) = plain.tokens("a")
    bent.run(
        request_of("a", HEAD, sampling=replace(params, logit_bias={said: -1000}), max_tokens=1)
    )
    first, second = plain.of("a")[1], bent.of("a")[1]
    assert first.top_logprobs == second.top_logprobs
    assert first.logprob == first.top_logprobs[0]
    assert second.logprob == second.top_logprobs[1]
    total = sum(np.exp(event.logprob) for event in first.top_logprobs)
    assert 0 < total <= 1


# Speed: what is read, and when


def test_an_identical_request_runs_no_pass_before_its_first_token(tmp_path) -> None:
    rig = Rig(tmp_path)
    rig.run(request_of("a", CONVERSATION))
    passes = len(rig.steps)
    rig.engine.submit(request_of("b", CONVERSATION))
    rig.until(lambda: rig.tokens("b"))
    assert len(rig.steps) == passes
    assert rig.admitted("b").cached_tokens == len(CONVERSATION.tokens)
    rig.run()
    assert rig.tokens("b") == rig.tokens("a")
    assert not any(step.prefill for step in rig.steps[passes:])


@layouts
def test_the_next_turn_reads_only_what_is_new(tmp_path, layout) -> None:
    rig, cold = Rig(tmp_path, layout=layout), Rig(tmp_path, layout=layout, cache_bytes=0)
    rig.run(request_of("a", prompt_of(HEAD, TURN)))
    passes = len(rig.steps)
    rig.run(request_of("b", CONVERSATION))
    read = sum(len(step.spans[0].tokens) for step in rig.steps[passes:] if step.prefill)
    usage = rig.finished("b").usage
    assert (usage.cached_tokens, read) == (len(HEAD + TURN), len(TAIL))
    cold.run(request_of("b", CONVERSATION))
    assert rig.tokens("b") == cold.tokens("b")


@layouts
def test_requests_that_begin_alike_read_their_start_once(tmp_path, layout) -> None:
    rig = Rig(tmp_path, layout=layout, lanes=4, chunk_len_max=8)
    tails = [some_tokens(seed, 9) for seed in range(10, 14)]
    rig.run(*(request_of(f"r{i}", prompt_of(HEAD, tail)) for i, tail in enumerate(tails)))
    read = sum(len(step.spans[0].tokens) for step in rig.steps if step.prefill)
    assert read == len(HEAD) + 4 * 9
    assert [rig.finished(f"r{i}").usage.cached_tokens for i in range(4)] == [0, 40, 40, 40]


def test_the_same_request_at_once_is_read_once(tmp_path) -> None:
    rig = Rig(tmp_path, lanes=3)
    rig.run(*(request_of(name, CONVERSATION) for name in "abc"))
    read = sum(len(step.spans[0].tokens) for step in rig.steps if step.prefill)
    assert read == len(CONVERSATION.tokens)
    assert rig.tokens("a") == rig.tokens("b") == rig.tokens("c")


def test_a_decoding_lane_never_waits_longer_than_one_chunk(tmp_path) -> None:
    rig = Rig(tmp_path, lanes=3)
    rig.engine.submit(request_of("a", HEAD, max_tokens=60))
    rig.until(lambda: rig.tokens("a"))
    first = len(rig.steps)
    for seed in range(4):
        rig.engine.submit(request_of(f"b{seed}", some_tokens(seed, 200), max_tokens=2))
    rig.until(lambda: len(rig.tokens("a")) == 60)
    kinds = [step.prefill for step in rig.steps[first:]]
    assert sum(kinds) > 20
    assert not any(both == (True, True) for both in pairwise(kinds))


def test_a_decoding_lane_does_not_wait_for_a_flood_of_others(tmp_path) -> None:
    rig = Rig(tmp_path, queue_max=20)
    rig.run(request_of("first", CONVERSATION))
    rig.engine.submit(request_of("a", HEAD, max_tokens=60))
    rig.until(lambda: rig.tokens("a"))
    for index in range(15):  # each ends as it is admitted
        rig.engine.submit(request_of(f"b{index}", CONVERSATION, max_tokens=1))
    while rig.engine.waiting:
        passes = len(rig.steps)
        rig.step(len(rig.lanes) + 1)
        assert len(rig.steps) > passes
    rig.run()


@layouts
def test_a_pass_ends_at_a_boundary_only_for_state_s_sake(tmp_path, layout) -> None:
    rig = Rig(tmp_path, lanes=1, layout=layout)
    rig.run(request_of("a", CONVERSATION))
    ends = [step.spans[0].end for step in rig.steps if step.prefill]
    assert ends == (
        [16, 32, 48, 64, 80, 90] if layout is STATELESS else [16, 32, 40, 56, 70, 86, 90]
    )
    assert rig.cache.slot_count == 3


def test_a_short_prompt_does_not_wait_behind_a_long_one(tmp_path) -> None:
    rig = Rig(tmp_path)
    rig.engine.submit(request_of("long", some_tokens(1, 240)))
    rig.step(4)
    rig.engine.submit(request_of("short", some_tokens(2, 20)))
    rig.until(lambda: rig.tokens("short"))
    assert not rig.tokens("long")
    rig.run()


def test_a_long_prompt_is_read_though_short_ones_keep_coming(tmp_path) -> None:
    rig = Rig(tmp_path, cache_bytes=0)
    rig.engine.submit(request_of("long", some_tokens(1, 240)))
    for seed in range(100):
        rig.engine.submit(request_of(f"s{seed}", some_tokens(seed, 30), max_tokens=1))
        rig.until(lambda: not rig.engine.waiting)
        if rig.tokens("long"):
            break
    assert 5 < seed < 30


def test_usage_tells_where_the_time_went(tmp_path) -> None:
    rig = Rig(tmp_path, lanes=1)
    rig.run(request_of("a", some_tokens(1, 32)), request_of("b", some_tokens(2, 48), max_tokens=3))
    usage = rig.finished("b").usage
    assert usage.queue_s == pytest.approx(0.032 + 3 * 0.01)
    assert usage.prefill_s == pytest.approx(0.048)
    assert usage.decode_s == pytest.approx(2 * 0.01)


# Sampling is each request's own


def test_a_seed_gives_the_same_reply_in_any_company(tmp_path) -> None:
    params = SamplingParams(temperature=1.5, seed=11)
    alone, rig = Rig(tmp_path), Rig(tmp_path, lanes=3)
    alone.run(request_of("a", HEAD, sampling=params, max_tokens=12))
    others = [
        request_of(name, some_tokens(ord(name), 30), sampling=replace(params, seed=None))
        for name in "bcd"
    ]
    rig.run(*others[:2], request_of("a", HEAD, sampling=params, max_tokens=12), others[2])
    assert rig.tokens("a") == alone.tokens("a")
    rig.run(request_of("e", HEAD, sampling=replace(params, seed=12), max_tokens=12))
    assert rig.tokens("e") != alone.tokens("a")


def test_nothing_of_a_request_s_sampling_sticks(tmp_path) -> None:
    wild = SamplingParams(
        temperature=9.0,
        top_k=3,
        presence_penalty=2.0,
        frequency_penalty=2.0,
        repetition_penalty=3.0,
        logit_bias=dict.fromkeys(range(100, 900), -50.0),
        seed=1,
    )
    rig, alone = Rig(tmp_path, lanes=1), Rig(tmp_path, lanes=1)
    rig.run(request_of("wild", TAIL, sampling=wild), request_of("a", HEAD, max_tokens=9))
    alone.run(request_of("a", HEAD, max_tokens=9))
    assert rig.tokens("a") == alone.tokens("a")


def test_report_is_a_log_softmax() -> None:
    logits = np.random.default_rng(5).normal(size=100).astype(np.float32)
    one, top = report(logits, 7, SamplingParams(logprobs=5))
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    assert one is not None
    assert one.logprob == pytest.approx(exact[7], abs=1e-6)
    assert [each.token for each in top] == np.argsort(-logits)[:5].tolist()
    assert report(logits, 7, SamplingParams(logprobs=0)) == (one, ())
    assert report(logits, 7, SamplingParams()) == (None, ())


def test_who_is_refused_hears_when_a_lane_is_likely_to_come_free(tmp_path) -> None:
    rig = Rig(tmp_path, lanes=2, queue_max=0)
    usual = rig.engine.queue_full().retry_after_s
    assert usual > 0
    for each in range(12):
        rig.run(request_of(f"r{each}", some_tokens(each, 9), max_tokens=200))
    spent = rig.finished("r11").usage
    lane_s = spent.prefill_s + spent.decode_s
    assert rig.engine.queue_full().retry_after_s == pytest.approx(lane_s / 2, abs=1)
    rig.runner.clock.now += 10_000
    assert rig.engine.queue_full().retry_after_s == pytest.approx(lane_s / 2, abs=1), (
        "not idle time"
    )

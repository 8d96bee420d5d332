"""How requests end before their time: cancelled, refused or failed, and none but they."""

from dataclasses import replace

import pytest

from flm.core.event import Failed, FinishReason
from flm.core.finding import FateKind
from flm.errors import BadRequest, DeviceFailed, NoRoom, PromptTooLong, QueueFull
from tests.engine.rig import (
    CONVERSATION,
    GREEDY,
    HEAD,
    TAIL,
    TURN,
    VOCABULARY,
    Rig,
    forced,
    layouts,
    prompt_of,
    request_of,
    some_tokens,
)

# Cancelling


def test_a_cancelled_waiting_request_leaves_the_running_one_alone(tmp_path) -> None:
    rig, alone = Rig(tmp_path, lanes=1), Rig(tmp_path, lanes=1)
    rig.engine.submit(request_of("a", CONVERSATION))
    rig.step(3)
    rig.engine.submit(request_of("b", HEAD))
    rig.engine.cancel("b")
    rig.run()
    assert rig.finished("b").reason is FinishReason.CANCELLED
    assert rig.finished("b").usage.prompt_tokens == 40
    alone.run(request_of("a", CONVERSATION))
    assert rig.tokens("a") == alone.tokens("a")


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@layouts
def test_a_cancelled_request_frees_its_lane_and_keeps_what_it_crossed(
    tmp_path, layout, phase
) -> None:
    rig = Rig(tmp_path, lanes=1, layout=layout)
    rig.engine.submit(request_of("a", CONVERSATION, max_tokens=50))
    rig.engine.submit(request_of("b", CONVERSATION))
    if phase == "prefill":
        rig.until(lambda: rig.steps and rig.steps[-1].spans[0].end > 40)
    else:
        rig.until(lambda: len(rig.tokens("a")) == 3)
    rig.engine.cancel("a")
    assert rig.lanes.free == 1
    rig.step()
    assert rig.finished("a").reason is FinishReason.CANCELLED
    rig.run()
    assert rig.finished("b").usage.cached_tokens == {"prefill": 40, "decode": 90}[phase]


def test_a_pass_for_a_cancelled_request_alone_is_cut_short(tmp_path) -> None:
    interrupt = []
    rig = Rig(tmp_path, during=lambda: [rig.engine.interrupt(name) for name in interrupt])
    rig.engine.submit(request_of("a", CONVERSATION))
    rig.until(lambda: rig.steps)
    interrupt.append("a")
    rig.step()
    assert rig.finished("a").reason is FinishReason.CANCELLED
    rig.engine.cancel("a")
    interrupt.clear()
    rig.run(request_of("b", CONVERSATION))
    assert rig.finished("b").reason is FinishReason.LENGTH


def test_a_pass_for_others_too_is_not_cut_short(tmp_path) -> None:
    interrupt = []
    rig = Rig(tmp_path, during=lambda: [rig.engine.interrupt(name) for name in interrupt])
    for name in "ab":
        rig.engine.submit(request_of(name, some_tokens(ord(name), 10), max_tokens=9))
    rig.until(lambda: rig.tokens("a") and rig.tokens("b"))
    interrupt += ["a", "nobody"]
    rig.step()
    assert len(rig.of("a")) == len(rig.tokens("a")) + 1
    rig.engine.cancel("a")
    rig.run()
    assert rig.finished("b").reason is FinishReason.LENGTH


def test_cancelling_what_is_gone_or_was_never_here_does_nothing(tmp_path) -> None:
    rig = Rig(tmp_path)
    rig.run(request_of("a", HEAD))
    rig.engine.cancel("a")
    rig.engine.cancel("b")
    assert not rig.engine.busy
    assert rig.engine.step() == []


# Limits and failures


def test_a_full_queue_says_so_and_lanes_count_as_room(tmp_path) -> None:
    rig = Rig(tmp_path, lanes=2, queue_max=3)
    for index in range(5):
        rig.engine.submit(request_of(f"r{index}", some_tokens(index, 20)))
    with pytest.raises(QueueFull) as caught:
        rig.engine.submit(request_of("r5", HEAD))
    assert caught.value.status == 429
    assert "--q-len" in caught.value.fix
    rig.run()
    assert len([rig.finished(f"r{index}") for index in range(5)]) == 5


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (request_of("a", some_tokens(1, 256)), PromptTooLong),
        (request_of("a", prompt_of()), BadRequest),
        (request_of("a", (1, 2, VOCABULARY)), BadRequest),
        (request_of("a", (1, -2)), BadRequest),
        (request_of("a", HEAD, sampling=replace(GREEDY, logit_bias={-1: 1.0})), BadRequest),
    ],
)
def test_what_no_engine_could_run_is_refused(tmp_path, request_, error) -> None:
    rig = Rig(tmp_path)
    with pytest.raises(error):
        rig.engine.validate(request_)


@layouts
def test_a_failed_pass_fails_those_in_it_and_no_other(tmp_path, layout) -> None:
    failing = []

    def during() -> None:
        if failing and rig.steps[-1].spans[0].lane == 1:
            failing.pop()
            raise DeviceFailed("the device is gone", fix="look at it")

    rig = Rig(tmp_path, lanes=2, layout=layout, during=during)
    alone = Rig(tmp_path, layout=layout)
    rig.engine.submit(request_of("a", HEAD, max_tokens=20))
    rig.until(lambda: rig.tokens("a"))
    rig.engine.submit(request_of("b", CONVERSATION))
    failing.append(True)
    rig.until(lambda: not failing)
    ending = rig.ending("b")
    assert isinstance(ending, Failed)
    assert ending.error.message == "the device is gone"
    assert rig.lanes[1].resident == [], "what a failed device holds is unknown"
    rig.run()
    rig.run(request_of("c", CONVERSATION))
    alone.run(request_of("a", HEAD, max_tokens=20), request_of("c", CONVERSATION))
    assert rig.tokens("a") == alone.tokens("a")
    assert rig.tokens("c") == alone.tokens("c"), "its lane holds nothing of the failed one"


def test_logits_that_are_not_numbers_fail_their_request_alone_and_are_not_kept(tmp_path) -> None:
    rig, alone = Rig(tmp_path, lanes=2), Rig(tmp_path)
    rig.engine.submit(request_of("a", HEAD, max_tokens=20))
    rig.until(lambda: rig.tokens("a"))
    rig.runner.spoil = {1}
    rig.run(request_of("b", CONVERSATION))
    ending = rig.ending("b")
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, DeviceFailed)
    rig.runner.spoil = set()
    rig.run(request_of("c", CONVERSATION))
    alone.run(request_of("a", HEAD, max_tokens=20), request_of("c", CONVERSATION))
    assert rig.tokens("a") == alone.tokens("a")
    assert rig.tokens("c") == alone.tokens("c")


def test_a_sequence_that_outgrows_its_lane_fails_alone(tmp_path) -> None:
    rig = Rig(tmp_path, capacity_max=64)
    rig.run(
        request_of("a", some_tokens(1, 60), max_tokens=30),
        request_of("b", some_tokens(2, 20), max_tokens=30),
    )
    ending = rig.ending("a")
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, NoRoom)
    assert len(rig.tokens("a")) == 5
    assert rig.finished("b").reason is FinishReason.LENGTH


def test_a_bug_ends_the_request_it_was_at_work_for(tmp_path, monkeypatch) -> None:
    rig = Rig(tmp_path)
    rig.engine.submit(request_of("a", HEAD, max_tokens=20))
    rig.until(lambda: rig.tokens("a"))
    rig.engine.submit(request_of("b", CONVERSATION))

    def bug(prompt, **how):
        raise AssertionError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(rig.cache, "lease", bug)
        with pytest.raises(AssertionError) as caught:
            rig.engine.step()
        rig.engine.abandon(caught.value)
    rig.run()
    assert rig.ending("b") == Failed("b", caught.value)
    assert rig.finished("a").reason is FinishReason.LENGTH


def test_a_sampler_that_breaks_ends_its_request_alone(tmp_path) -> None:
    rig = Rig(tmp_path, sampler_for=forced(a=[20] * 9, b=[20]))
    rig.run(request_of("a", HEAD, max_tokens=9), request_of("b", TAIL, max_tokens=9))
    ending = rig.ending("b")
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, IndexError)
    assert len(rig.tokens("a")) == 9


@layouts
def test_a_kept_prompt_that_cannot_be_restored_holds_up_nobody(
    tmp_path, layout, monkeypatch
) -> None:
    """Not even while another request is on it; who met it reads, and who comes next as well."""
    rig = Rig(tmp_path, layout=layout, lanes=2)
    rig.run(request_of("first", HEAD, max_tokens=1))
    rig.engine.submit(request_of("on it", prompt_of(HEAD, TURN), max_tokens=30))
    rig.until(lambda: rig.tokens("on it"))
    restore = rig.runner.restore

    def fails(lane, tokens, snapshots):
        if snapshots:
            raise DeviceFailed("told to", fix="none")
        return restore(lane, tokens, snapshots)

    monkeypatch.setattr(rig.runner, "restore", fails)
    later = prompt_of(HEAD, TAIL)
    rig.run(request_of("met it", later), request_of("next", later))
    assert len([line for line in rig.log if "cannot be restored" in line]) <= 2
    cold = Rig(tmp_path, layout=layout, cache_bytes=0)
    cold.run(request_of("cold", later))
    assert rig.tokens("met it") == rig.tokens("next") == cold.tokens("cold")
    assert rig.finished("on it").usage.completion_tokens == 30


@layouts
def test_why_a_cancelled_prompt_was_not_kept_is_known(tmp_path, layout) -> None:
    rig = Rig(tmp_path, layout=layout, ghosts_bytes=2**16)
    rig.engine.submit(request_of("a", CONVERSATION))
    rig.step(3)
    rig.engine.cancel("a")
    rig.until(lambda: not rig.engine.busy)
    kinds = {fate.kind for fate in rig.cache.look(CONVERSATION).fates}
    assert kinds == {FateKind.CANCELLED}

"""What nobody waits for: it runs when nothing else does, gives way at once, and ends in the end.

Reused prompts that are read again (`--reuse-audit`) tell whether what was kept is what was read.
"""

from dataclasses import replace

import numpy as np
import pytest

from flm.core.event import FinishReason
from flm.core.prompt import Prompt
from flm.core.request import Priority, Request
from flm.engine.idle import AUDITS_MAX, IDLE_MAX
from flm.errors import DeviceFailed
from flm.prefix.tally import AUDITS
from tests.engine.rig import (
    CONVERSATION,
    HEAD,
    STATEFUL,
    Rig,
    layouts,
    prompt_of,
    request_of,
    some_tokens,
)

LONG = prompt_of(some_tokens(30, 120), some_tokens(31, 110))
STRANGER = prompt_of(some_tokens(40, 20))
FIRST = prompt_of(HEAD, some_tokens(50, 30))
LATER = prompt_of(HEAD, some_tokens(50, 30), some_tokens(51, 25))


def idle(name: str, prompt: Prompt, *, reuse: bool = True) -> Request:
    request = request_of(name, prompt, max_tokens=0)
    return replace(request, priority=Priority.IDLE, reuse=reuse)


def lane_tokens(rig: Rig, start: int) -> list[tuple[int, ...]]:
    return [step.spans[0].tokens for step in rig.steps[start:] if step.prefill]


# --- audits ---


@layouts
@pytest.mark.parametrize("every", [1, 2, 3])
def test_one_in_so_many_reused_prompts_is_read_again_and_found_equal(
    tmp_path, layout, every: int
) -> None:
    rig = Rig(tmp_path, layout=layout, audit_every=every)
    for number in range(7):
        rig.run(request_of(f"r{number}", prompt_of(HEAD, some_tokens(60 + number, 25))))
    reused = sum(rig.finished(f"r{n}").usage.cached_tokens > 0 for n in range(7))
    assert reused >= 5
    assert rig.cache.tally.of(AUDITS, "equal") == reused // every
    assert rig.cache.tally.of(AUDITS, "different") == 0
    assert not any("other logits" in line for line in rig.log)


@layouts
def test_an_audit_reads_all_of_it_and_keeps_nothing(tmp_path, layout) -> None:
    rig = Rig(tmp_path, layout=layout, audit_every=1)
    rig.run(request_of("first", FIRST))
    rig.engine.submit(request_of("later", LATER))
    rig.until(lambda: rig.of("later") and not rig.engine.running)
    start, kept = len(rig.steps), rig.cache.bytes_kept
    rig.until(lambda: not rig.engine.busy)
    read = [token for tokens in lane_tokens(rig, start) for token in tokens]
    assert tuple(read) == LATER.tokens
    assert rig.cache.bytes_kept == kept


@layouts
@pytest.mark.parametrize("every", [0, 1])
def test_what_is_kept_wrongly_is_told_and_only_by_an_audit(tmp_path, layout, every: int) -> None:
    rig = Rig(tmp_path, layout=layout, audit_every=every, lanes=1)
    rig.run(request_of("first", FIRST))
    node = next(iter(rig.cache.slots.values()))
    rows = next(iter(node.path())).rows["keys"]
    rows.flags.writeable = True
    rows.view(np.uint8).reshape(-1)[2] ^= 0x10
    rig.run(request_of("stranger", STRANGER))  # the lane holds it no more
    rig.run(request_of("later", LATER))
    assert rig.finished("later").usage.cached_tokens >= len(HEAD)
    assert rig.cache.tally.of(AUDITS, "different") == every
    told = [line for line in rig.log if "later-audit gives other logits" in line]
    assert len(told) == every


def test_a_state_that_is_kept_wrongly_is_told(tmp_path) -> None:
    rig = Rig(tmp_path, layout=STATEFUL, audit_every=1, lanes=1)
    rig.run(request_of("first", FIRST))
    for node in rig.cache.slots.values():
        assert node.slot
        for state in node.slot.state.values():
            state.flags.writeable = True
            state.reshape(-1)[0] += 1
    rig.run(request_of("later", LATER))
    assert rig.cache.tally.of(AUDITS, "different") == 1


# --- giving way ---


@layouts
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("reuse", [True, False], ids=["ahead", "audit"])
@pytest.mark.parametrize("after", [0, 1, 3, 6, 12])
def test_who_is_waited_for_goes_first_whatever_is_read_meanwhile(
    tmp_path, layout, lanes: int, reuse: bool, after: int
) -> None:
    rig = Rig(tmp_path, layout=layout, lanes=lanes)
    rig.engine.submit(idle("idle", LONG, reuse=reuse))
    rig.step(after)
    start = len(rig.steps)
    rig.engine.submit(request_of("asked", STRANGER))
    rig.until(lambda: rig.tokens("asked"))
    assert sum(map(len, lane_tokens(rig, start))) == len(STRANGER.tokens), "nothing but its own"
    rig.until(lambda: not rig.engine.busy)
    assert rig.finished("idle").reason is FinishReason.LENGTH
    assert rig.tokens("idle") == []
    assert rig.lanes.free == lanes


@layouts
def test_idle_work_that_is_disturbed_again_and_again_ends(tmp_path, layout) -> None:
    """What it has read so far is not lost."""
    rig = Rig(tmp_path, layout=layout, lanes=1)
    rig.engine.submit(idle("idle", LONG))
    for number in range(60):
        rig.step(3)
        rig.engine.submit(request_of(f"r{number}", some_tokens(100 + number, 5), max_tokens=1))
        rig.until(lambda number=number: rig.of(f"r{number}"))
    rig.until(lambda: not rig.engine.busy)
    assert rig.finished("idle").reason is FinishReason.LENGTH
    own = sum(len(tokens) for tokens in lane_tokens(rig, 0) if len(tokens) > 5)
    assert own <= len(LONG.tokens) + 16, "what it had read was lost"


@layouts
def test_while_there_is_other_work_none_of_it_is_done(tmp_path, layout) -> None:
    rig = Rig(tmp_path, layout=layout, lanes=2)
    rig.engine.submit(idle("idle", LONG))
    for number in range(8):
        rig.engine.submit(request_of(f"r{number}", some_tokens(80 + number, 30)))
    rig.until(lambda: not rig.engine.waiting and rig.engine.running <= 1)
    assert not any(hasattr(event, "reason") for event in rig.of("idle"))
    rig.until(lambda: not rig.engine.busy)
    assert rig.finished("idle").reason is FinishReason.LENGTH


# --- reading only ---


@layouts
def test_what_was_read_while_idle_is_not_read_again(tmp_path, layout) -> None:
    rig = Rig(tmp_path, layout=layout)
    rig.run(idle("warm", CONVERSATION))
    assert rig.finished("warm").usage.completion_tokens == 0
    start = len(rig.steps)
    rig.run(request_of("asked", CONVERSATION))
    assert rig.finished("asked").usage.cached_tokens == len(CONVERSATION.tokens)
    assert not lane_tokens(rig, start)
    cold = Rig(tmp_path, layout=layout, cache_bytes=0)
    cold.run(request_of("asked", CONVERSATION))
    assert rig.tokens("asked") == cold.tokens("asked")


@layouts
def test_what_is_read_while_idle_pushes_nothing_out(tmp_path, layout) -> None:
    one = 100 * layout.row_bytes + 3 * layout.state_bytes + 2**14
    rig = Rig(tmp_path, layout=layout, cache_bytes=one)
    chat = prompt_of(some_tokens(70, 90))
    rig.run(request_of("chat", chat))
    assert rig.cache.slot_count
    rig.run(idle("warm", LONG))
    rig.run(request_of("again", chat))
    assert rig.finished("again").usage.cached_tokens == len(chat.tokens)


def test_what_waits_is_bounded_and_the_oldest_goes(tmp_path) -> None:
    rig = Rig(tmp_path, lanes=1)
    rig.engine.submit(request_of("busy", some_tokens(1, 20), max_tokens=8))
    rig.step(2)
    for number in range(IDLE_MAX + 3):
        rig.engine.submit(idle(f"idle {number}", prompt_of(some_tokens(number, 20))))
    rig.step()
    dropped = [n for n in range(IDLE_MAX + 3) if rig.of(f"idle {n}")]
    assert dropped == [0, 1, 2]
    rig.until(lambda: not rig.engine.busy, steps_max=2000)
    reasons = [rig.finished(f"idle {n}").reason for n in range(IDLE_MAX + 3)]
    assert reasons == [FinishReason.CANCELLED] * 3 + [FinishReason.LENGTH] * IDLE_MAX


@layouts
@pytest.mark.parametrize("after", [0, 1, 3])
def test_idle_work_can_be_called_off(tmp_path, layout, after: int) -> None:
    rig = Rig(tmp_path, layout=layout, lanes=1)
    rig.engine.submit(idle("idle", LONG))
    rig.step(after)
    rig.engine.cancel("idle")
    rig.until(lambda: not rig.engine.busy)
    assert rig.finished("idle").reason is FinishReason.CANCELLED
    assert rig.lanes.free == 1


@layouts
def test_an_audit_overtakes_nothing_for_it_keeps_nothing(tmp_path, layout) -> None:
    rig = Rig(tmp_path, layout=layout, audit_every=1)
    rig.run(request_of("first", FIRST))
    rig.engine.submit(request_of("later", LATER))
    rig.until(lambda: rig.of("later") and not rig.engine.running)
    rig.engine.submit(idle("head", prompt_of(LATER.tokens[:60])))
    rig.until(lambda: not rig.engine.busy)
    assert rig.finished("head").reason is not FinishReason.CANCELLED


@layouts
def test_audits_that_fail_do_not_end_all_auditing(tmp_path, layout) -> None:
    broken = [False]

    def during() -> None:
        if broken[0]:
            raise DeviceFailed("told to", fix="none")

    rig = Rig(tmp_path, layout=layout, audit_every=1, during=during)
    rig.run(request_of("first", FIRST))
    for number in range(AUDITS_MAX + 2):
        rig.engine.submit(request_of(f"r{number}", FIRST, max_tokens=1))
        rig.until(lambda name=f"r{number}": rig.of(name) and not rig.engine.pressed)
        broken[0] = True
        rig.until(lambda: not rig.engine.busy)
        broken[0] = False
    rig.run(request_of("last", FIRST, max_tokens=1))
    assert rig.cache.tally.of(AUDITS, "equal") == 1


@layouts
def test_clearing_a_domain_ends_what_was_to_be_read_for_it(tmp_path, layout) -> None:
    rig = Rig(tmp_path, layout=layout)
    rig.engine.submit(replace(idle("mine", FIRST), prompt=replace(FIRST, domain="mine")))
    rig.engine.submit(idle("other", FIRST))
    rig.engine.clear("mine")
    rig.until(lambda: not rig.engine.busy)
    assert rig.finished("mine").reason is FinishReason.CANCELLED
    assert rig.finished("other").reason is FinishReason.LENGTH

"""Work that nobody waits for: it gives way, pushes nothing out, and what it did is counted."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flm.core.event import Finished, FinishReason
from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.core.request import Priority, Request
from flm.memory.layout import MemoryLayout
from flm.prefix.tally import AHEAD, AHEAD_S
from tests.engine.rig import (
    CONVERSATION,
    HEAD,
    TAIL,
    TURN,
    Rig,
    layouts,
    prompt_of,
    request_of,
    some_tokens,
)

REPLY = some_tokens(4, 50)
READ = (*CONVERSATION.tokens, *REPLY)
NEXT = prompt_of(READ, some_tokens(5, 7))
CHUNK = 16


def ahead_of(name: str, tokens: Sequence[int] = READ, *, reuse: bool = True) -> Request:
    prompt = Prompt(tuple(tokens), (Boundary(len(tokens), BoundaryKind.TURN),))
    request = request_of(name, prompt, max_tokens=0)
    return replace(request, priority=Priority.IDLE, reuse=reuse)


@pytest.fixture
def rig(tmp_path: Path, layout: MemoryLayout) -> Rig:
    return Rig(tmp_path, layout=layout, chunk_len_max=CHUNK)


def adds_up(rig: Rig) -> bool:
    """Once all is done: what was read ahead was used, wasted, or may be used yet."""
    tally = rig.cache.tally
    kept = sum(node.slot.ahead for node in rig.cache.slots.values() if node.slot)
    return tally.of(AHEAD, "read") == tally.of(AHEAD, "used") + tally.of(AHEAD, "wasted") + kept


def tokens_read(rig: Rig) -> int:
    return sum(len(step.spans[0].tokens) for step in rig.steps if step.prefill)


@layouts
def test_the_next_turn_finds_what_was_read_ahead(rig: Rig) -> None:
    rig.run(request_of("first", CONVERSATION))
    rig.run(ahead_of("ahead"))
    assert rig.finished("ahead").reason is FinishReason.LENGTH
    assert not rig.tokens("ahead")
    rig.run(request_of("next", NEXT))
    assert rig.finished("next").usage.cached_tokens == len(READ)
    assert rig.cache.tally.of(AHEAD, "used") == rig.cache.tally.of(AHEAD, "read") == len(REPLY)
    assert rig.cache.tally.of(AHEAD_S) == pytest.approx(len(REPLY) / 1000)
    assert adds_up(rig)


@layouts
def test_a_request_waits_for_one_chunk_of_it_at_most(rig: Rig) -> None:
    rig.run(request_of("first", CONVERSATION))
    rig.engine.submit(ahead_of("ahead"))
    rig.until(lambda: tokens_read(rig) > len(CONVERSATION.tokens))
    done = len(rig.steps)
    rig.run(request_of("other", some_tokens(9, 20)))
    others = rig.steps[done:]
    assert others[0].spans[0].tokens == some_tokens(9, 20)[: len(others[0].spans[0].tokens)]
    first = next(
        n for n, step in enumerate(others) if step.spans[0].start >= len(CONVERSATION.tokens)
    )
    assert all(step.spans[0].start < 100 for step in others[:first])
    assert rig.finished("ahead").reason is FinishReason.LENGTH, "it went on after that"
    assert rig.cache.tally.of(AHEAD, "read") == len(REPLY), "where it had come to"
    assert adds_up(rig)


@layouts
@pytest.mark.parametrize("lanes", [1, 2])
def test_the_turn_itself_goes_on_where_reading_ahead_has_come_to(
    tmp_path: Path, layout: MemoryLayout, lanes: int
) -> None:
    """However little it is: the request has waited for the chunk."""
    few = 2 * CHUNK + 1
    rig = Rig(tmp_path, layout=layout, chunk_len_max=CHUNK, lanes=lanes, gain_min=few)
    rig.run(request_of("first", CONVERSATION))
    rig.engine.submit(ahead_of("ahead"))
    rig.until(lambda: tokens_read(rig) == len(CONVERSATION.tokens) + 2 * CHUNK)
    rig.run(request_of("next", NEXT))
    assert rig.finished("next").usage.cached_tokens == len(CONVERSATION.tokens) + 2 * CHUNK
    assert tokens_read(rig) == len(NEXT.tokens), "each token once"
    assert rig.finished("ahead").reason is FinishReason.CANCELLED
    assert rig.cache.tally.of(AHEAD, "used") == rig.cache.tally.of(AHEAD, "read") == 2 * CHUNK
    assert adds_up(rig)


@layouts
def test_what_a_request_goes_on_from_is_not_read_after_it(rig: Rig) -> None:
    rig.run(request_of("first", CONVERSATION))
    rig.engine.submit(ahead_of("ahead"))
    rig.engine.submit(ahead_of("elsewhere", (*CONVERSATION.tokens, *TURN)))
    rig.run(request_of("next", NEXT))
    assert rig.finished("ahead").reason is FinishReason.CANCELLED
    assert rig.finished("elsewhere").reason is FinishReason.LENGTH
    assert rig.cache.tally.of(AHEAD, "read") == len(TURN)
    assert adds_up(rig)


@layouts
def test_an_audit_is_read_though_the_conversation_goes_on(rig: Rig) -> None:
    rig.engine.submit(ahead_of("audit", CONVERSATION.tokens, reuse=False))
    rig.run(request_of("next", NEXT))
    assert rig.finished("audit").reason is FinishReason.LENGTH
    assert rig.cache.tally.of(AHEAD) == 0
    assert tokens_read(rig) == len(NEXT.tokens) + len(CONVERSATION.tokens)


@layouts
def test_what_is_kept_already_is_not_read(rig: Rig) -> None:
    rig.run(request_of("next", NEXT))
    done = tokens_read(rig)
    rig.run(ahead_of("all of it", READ), ahead_of("again", READ))
    assert tokens_read(rig) == done
    assert adds_up(rig)


def test_rows_on_the_way_to_a_longer_prompt_are_not_read(tmp_path: Path) -> None:
    rig = Rig(tmp_path, chunk_len_max=CHUNK, gain_min=8)
    rig.run(request_of("longer", prompt_of((*READ, *TAIL))))
    done = len(rig.steps)
    rig.run(ahead_of("ahead"))
    assert (
        tokens_read(rig) - sum(len(s.spans[0].tokens) for s in rig.steps[:done] if s.prefill) == 0
    )
    assert rig.finished("ahead").reason is FinishReason.LENGTH


@layouts
def test_too_little_to_keep_is_not_read(tmp_path: Path, layout: MemoryLayout) -> None:
    rig = Rig(tmp_path, layout=layout, gain_min=len(REPLY) + 1)
    rig.run(request_of("first", CONVERSATION))
    rig.run(ahead_of("ahead"))
    assert rig.cache.tally.of(AHEAD, "read") == 0
    rig.run(ahead_of("more", (*READ, 20)))
    assert rig.cache.tally.of(AHEAD, "read") == len(REPLY) + 1


@layouts
def test_nothing_of_rank_goes_for_it(tmp_path: Path, layout: MemoryLayout) -> None:
    """The cache is full of others: nothing of theirs is given up, and nothing is read in vain."""
    others = [prompt_of(some_tokens(20 + n, 40)) for n in range(4)]
    size = 4 * (40 * layout.row_bytes + layout.state_bytes) + 4 * 4 * 2048
    rig = Rig(tmp_path, layout=layout, cache_bytes=size + 60 * layout.row_bytes)
    for number, prompt in enumerate(others):
        rig.run(request_of(f"other {number}", prompt))
    kept = set(rig.cache.slots)
    assert len(kept) == 4
    rig.run(ahead_of("ahead", some_tokens(30, 200)))
    assert rig.finished("ahead").reason is FinishReason.LENGTH
    assert set(rig.cache.slots) == kept
    for number, prompt in enumerate(others):
        rig.run(request_of(f"again {number}", prompt))
        assert rig.finished(f"again {number}").usage.cached_tokens == 40
    assert rig.cache.tally.of(AHEAD, "read") == 0


@layouts
def test_what_a_slot_is_wanted_for_by_another_is_not_read(
    tmp_path: Path, layout: MemoryLayout
) -> None:
    """The only slot is another conversation's; of its own it is outgrown, and taken over."""
    rig = Rig(tmp_path, layout=layout, slots_max=1)
    rig.run(request_of("first", prompt_of(CONVERSATION.tokens)))
    rig.run(ahead_of("other", some_tokens(30, 100)))
    assert rig.cache.tally.of(AHEAD, "read") == 0
    rig.run(ahead_of("ahead"))
    assert rig.cache.tally.of(AHEAD, "read") == len(REPLY)
    assert rig.cache.tally.of(AHEAD, "wasted") == 0
    assert adds_up(rig)


@layouts
def test_what_is_given_up_unused_is_wasted(rig: Rig) -> None:
    rig.run(request_of("first", CONVERSATION))
    rig.run(ahead_of("ahead"))
    rig.cache.clear()
    assert rig.cache.tally.of(AHEAD, "wasted") == len(REPLY)
    assert adds_up(rig)


def test_only_what_a_request_shares_of_it_is_used(tmp_path: Path) -> None:
    """Rows alone: the start that all begin with was not read ahead, half of the reply was."""
    rig = Rig(tmp_path, chunk_len_max=CHUNK)
    rig.run(request_of("first", prompt_of(HEAD)))
    rig.run(ahead_of("ahead", (*HEAD, *REPLY)))
    rig.run(request_of("other", prompt_of((*HEAD, *TAIL))))
    assert rig.cache.tally.of(AHEAD, "used") == 0
    rig.run(request_of("edited", prompt_of((*HEAD, *REPLY[:25], *TAIL))))
    assert rig.cache.tally.of(AHEAD, "used") == 25
    rig.run(request_of("went on", prompt_of((*HEAD, *REPLY, *TAIL))))
    assert rig.cache.tally.of(AHEAD, "used") == rig.cache.tally.of(AHEAD, "read") == len(REPLY)
    assert adds_up(rig)


@layouts
def test_a_program_s_conversation_stays_a_program_s(rig: Rig) -> None:
    rig.run(replace(request_of("first", CONVERSATION), priority=Priority.AGENT))
    rig.run(ahead_of("ahead"))
    assert all(node.slot.agent for node in rig.cache.slots.values() if node.slot)
    rig.run(request_of("next", NEXT))
    deepest = max(rig.cache.slots.values(), key=lambda node: node.end)
    assert deepest.slot is not None
    assert not deepest.slot.agent, "but a person may take it up"


@layouts
def test_it_says_nothing_and_misses_nothing(rig: Rig) -> None:
    rig.run(ahead_of("ahead"))
    assert not [line for line in rig.log if "matches" in line or "resuming" in line]
    assert all(isinstance(event, Finished) for event in rig.of("ahead")[1:])


@layouts
@pytest.mark.parametrize("gain_min", [1, 40])
def test_whatever_comes_between_it_adds_up_and_each_ends(
    tmp_path: Path, layout: MemoryLayout, gain_min: int
) -> None:
    """A request after every number of steps, with what goes on from it and what does not."""
    for steps in range(8):
        rig = Rig(tmp_path, layout=layout, chunk_len_max=CHUNK, lanes=1, gain_min=gain_min)
        rig.run(request_of("first", CONVERSATION))
        rig.engine.submit(ahead_of("ahead"))
        rig.step(steps)
        rig.run(request_of("other", some_tokens(9, 20)), request_of("next", NEXT))
        assert rig.ending("ahead")
        assert adds_up(rig)

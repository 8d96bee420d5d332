"""Prompts that begin alike and arrive together are read once: the others wait for the first to keep
what they share. Who loses the one it waits for reads on its own, and nobody waits for ever.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from flm.core.event import Failed, FinishReason
from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.core.request import Request
from flm.errors import DeviceFailed, QueueFull
from flm.memory.layout import MemoryLayout
from flm.prefix.tally import HITS, MISSES, WAITS
from tests.engine.rig import (
    STATEFUL,
    STATELESS,
    Rig,
    layouts,
    prompt_of,
    request_of,
    some_tokens,
)

CHUNK = 16
HEAD = some_tokens(1, 190)
USERS = 4
TAILS = [(user + 20, *some_tokens(user + 10, 9)) for user in range(USERS)]


def user(number: int, *, head: Sequence[int] = HEAD, domain: str = "") -> Request:
    """One of several who share 95 %."""
    prompt = replace(prompt_of(head, TAILS[number]), domain=domain)
    return request_of(f"user {number}", prompt)


def read(rig: Rig) -> int:
    """Tokens of prompts that passes were run over."""
    return sum(len(step.spans[0].tokens) for step in rig.steps if step.prefill)


def cold_text(folder: Path, layout: MemoryLayout, request: Request) -> list[int]:
    rig = Rig(folder, layout=layout, lanes=1, cache_bytes=0)
    rig.run(request)
    return rig.tokens(request.id)


def answered(rig: Rig, folder: Path, layout: MemoryLayout, *requests: Request) -> None:
    for request in requests:
        assert rig.tokens(request.id) == cold_text(folder, layout, request)


NAMES = st.integers(0, 3)
SHARES = [some_tokens(50, 60), some_tokens(51, 60), some_tokens(52, 30)]


def family(path: tuple[int, ...], tail: int, marked: bool) -> Prompt:
    """Prompts of a tree: `path` picks its segments."""
    tokens: list[int] = []
    boundaries = []
    for step in path:
        tokens += SHARES[step]
        if marked:
            kind = BoundaryKind.TURN if boundaries else BoundaryKind.HEAD
            boundaries.append(Boundary(len(tokens), kind))
    tokens += (tail + 30, *some_tokens(tail, 8))
    boundaries.append(Boundary(len(tokens), BoundaryKind.END))
    return Prompt(tuple(tokens), tuple(boundaries))


def unavoidable(prompts: Sequence[Prompt]) -> int:
    """Tokens of the tree of all prompts, each counted once."""
    return len(
        {prompt.tokens[:end] for prompt in prompts for end in range(1, 1 + len(prompt.tokens))}
    )


@layouts
@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 5])
def test_who_arrive_together_read_what_they_share_once(tmp_path, layout, lanes: int) -> None:
    """As the four users of one gateway did, in ../bench/traces."""
    rig = Rig(tmp_path, layout=layout, lanes=lanes)
    users = [user(number) for number in range(USERS)]
    rig.run(*users)
    assert read(rig) == len(HEAD) + sum(map(len, TAILS))
    answered(rig, tmp_path, layout, *users)
    cached = [rig.finished(each.id).usage.cached_tokens for each in users]
    assert cached == [0] + [len(HEAD)] * (USERS - 1)
    assert rig.cache.tally.of(WAITS) == min(lanes, USERS) - 1, "who found it kept did not wait"


@layouts
def test_who_waits_for_another_to_read_is_not_said_to_read(tmp_path, layout) -> None:
    rig = Rig(tmp_path, layout=layout, lanes=2)
    rig.run(user(0), user(1))
    usage = rig.finished("user 1").usage
    assert usage.queue_s >= len(HEAD) / 1000
    assert usage.read_per_s >= 200, "a token takes a millisecond, and the other's passes some"


@layouts
def test_who_has_nothing_to_read_took_no_time_to(tmp_path, layout) -> None:
    rig = Rig(tmp_path, layout=layout)
    rig.run(user(0))
    rig.run(replace(user(0), id="again"))
    usage = rig.finished("again").usage
    assert usage.cached_tokens == usage.prompt_tokens
    assert (usage.queue_s, usage.prefill_s) == (0, 0)


@layouts
@pytest.mark.parametrize("later", range(0, 18, 3))
def test_who_arrives_while_it_is_read_waits_for_it_too(tmp_path, layout, later: int) -> None:
    rig = Rig(tmp_path, layout=layout, lanes=4)
    rig.engine.submit(user(0))
    rig.step(1 + later)
    rig.run(user(1), user(2))
    assert read(rig) == len(HEAD) + sum(map(len, TAILS[:3]))
    answered(rig, tmp_path, layout, user(1), user(2))


@pytest.mark.parametrize("later", [6, 9])
def test_rows_that_are_read_are_there_for_who_comes_later(tmp_path, later: int) -> None:
    """Past what they share, where no boundary is: with state it is too late, rows can be cut."""
    rig = Rig(tmp_path, layout=STATELESS, lanes=2)
    leader = request_of("leader", prompt_of((*HEAD[:60], *some_tokens(7, 140))))
    late = request_of("late", prompt_of((*HEAD[:60], *TAILS[1])))
    rig.engine.submit(leader)
    rig.step(later)
    rig.run(late)
    assert read(rig) == len(leader.prompt.tokens) + len(TAILS[1])


@layouts
def test_they_share_where_no_boundary_is(tmp_path, layout) -> None:
    """What the newcomer has in common with who reads is where that one will keep it."""
    rig = Rig(tmp_path, layout=layout, lanes=3)
    requests = [
        request_of(f"user {n}", prompt_of((*HEAD, *tail))) for n, tail in enumerate(TAILS[:3])
    ]
    rig.run(*requests)
    whole = len(HEAD) + len(TAILS[0])
    once = whole + 2 * len(TAILS[0])
    # With state a fork is a cut; rows are kept at the leader's end, and so it is waited for.
    assert read(rig) == once
    answered(rig, tmp_path, layout, *requests)


@layouts
@pytest.mark.parametrize("after", range(16))
def test_who_followed_one_that_is_cancelled_reads_on(tmp_path, layout, after: int) -> None:
    """Whenever it is: what it had kept is kept, and one of the others goes on."""
    rig = Rig(tmp_path, layout=layout, lanes=4)
    for number in range(3):
        rig.engine.submit(user(number))
    rig.step(3 + after)
    before = read(rig)
    rig.engine.cancel("user 0")
    rig.until(lambda: not rig.engine.busy)
    followers = [user(1), user(2)]
    answered(rig, tmp_path, layout, *followers)
    once = len(HEAD) + sum(map(len, TAILS[1:3]))
    assert read(rig) <= before + once, "not more than without the one that is gone"
    if before >= len(HEAD):
        assert read(rig) <= len(HEAD) + sum(map(len, TAILS[:3]))


@layouts
@pytest.mark.parametrize("failing", range(1, 14, 2))
def test_who_followed_one_that_fails_reads_on(tmp_path, layout, failing: int) -> None:
    passes = [0]

    def during() -> None:
        passes[0] += 1
        if passes[0] == failing:
            raise DeviceFailed("told to", fix="none")

    rig = Rig(tmp_path, layout=layout, lanes=4, during=during)
    users = [user(number) for number in range(3)]
    rig.run(*users)
    endings = [rig.ending(each.id) for each in users]
    assert sum(isinstance(ending, Failed) for ending in endings) == 1
    for each, ending in zip(users, endings, strict=True):
        if not isinstance(ending, Failed):
            assert rig.tokens(each.id) == cold_text(tmp_path, layout, each)
    assert read(rig) <= 2 * len(HEAD) + sum(map(len, TAILS[:3])) + CHUNK


@layouts
def test_who_followed_one_that_has_no_room_to_keep_reads_on_its_own(tmp_path, layout) -> None:
    rig = Rig(tmp_path, layout=layout, lanes=4, cache_bytes=64)
    users = [user(number) for number in range(3)]
    rig.run(*users)
    answered(rig, tmp_path, layout, *users)
    assert all(rig.finished(each.id).usage.cached_tokens == 0 for each in users)


@layouts
def test_nobody_waits_for_another_domain(tmp_path, layout) -> None:
    rig = Rig(tmp_path, layout=layout, lanes=4)
    users = [user(number, domain=f"domain {number % 2}") for number in range(4)]
    rig.run(*users)
    cached = [rig.finished(each.id).usage.cached_tokens for each in users]
    assert cached == [0, 0, len(HEAD), len(HEAD)]
    assert read(rig) == 2 * len(HEAD) + sum(map(len, TAILS))
    answered(rig, tmp_path, layout, *users)


@layouts
@pytest.mark.parametrize("cut", [20, 100, 189])
@pytest.mark.parametrize("longer_first", [True, False])
def test_who_has_less_in_common_waits_for_that(tmp_path, layout, cut, longer_first) -> None:
    """A prompt that is the beginning of another, or parts from it inside its head."""
    whole = user(0)
    part = request_of("part", prompt_of((*HEAD[:cut], *TAILS[1])))
    start = request_of("start", prompt_of(HEAD[:cut]))
    requests = [whole, part, start] if longer_first else [start, part, whole]
    rig = Rig(tmp_path, layout=layout, lanes=4)
    rig.run(*requests)
    answered(rig, tmp_path, layout, *requests)
    needed = unavoidable([each.prompt for each in requests])
    # Whose whole prompt is a start of another must read its last token anew, for the logits; with
    # state that may be all of it.
    again = cut if layout.state else 2
    assert read(rig) <= needed + again


@layouts
def test_a_short_stranger_is_not_held_up_by_who_waits(tmp_path, layout) -> None:
    rig = Rig(tmp_path, layout=layout, lanes=5)
    for number in range(USERS):
        rig.engine.submit(user(number))
    rig.engine.submit(request_of("stranger", some_tokens(99, 12)))
    rig.until(lambda: rig.tokens("stranger"))
    assert read(rig) <= 3 * CHUNK + 12
    rig.until(lambda: not rig.engine.busy)


@layouts
def test_reuse_turned_off_neither_waits_nor_is_waited_for(tmp_path, layout) -> None:
    rig = Rig(tmp_path, layout=layout, lanes=4)
    users = [replace(user(number), reuse=False) for number in range(2)] + [user(2), user(3)]
    rig.run(*users)
    answered(rig, tmp_path, layout, *users)
    cached = [rig.finished(each.id).usage.cached_tokens for each in users]
    assert cached == [0, 0, 0, len(HEAD)]


# --- any arrivals and cancels ---


class Arrivals(RuleBasedStateMachine):
    """Prompts that begin alike, at any moment, some of whom leave. Room is ample."""

    folder: ClassVar[Path]

    @initialize(layout=st.sampled_from(["rows", "state"]), lanes=st.integers(1, 4))
    def start(self, layout: str, lanes: int) -> None:
        self.layout = {"rows": STATELESS, "state": STATEFUL}[layout]
        self.rig = Rig(self.folder, layout=self.layout, lanes=lanes, queue_max=6)
        self.prompts: dict[str, Prompt] = {}
        self.left: set[str] = set()
        self.spent = 0  # tokens that those who left may have read in vain

    @rule(path=st.lists(st.integers(0, 2), max_size=3).map(tuple), tail=NAMES)
    def arrive(self, path: tuple[int, ...], tail: int) -> None:
        name, prompt = f"r{len(self.prompts)}", family(path, tail, marked=True)
        try:
            self.rig.engine.submit(request_of(name, prompt, max_tokens=2))
        except QueueFull:
            return
        self.prompts[name] = prompt

    @precondition(lambda self: self.prompts)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.prompts)))
        if name not in self.left and not any(
            not hasattr(event, "token") and hasattr(event, "reason") for event in self.rig.of(name)
        ):
            self.spent += len(self.prompts[name].tokens)
            self.left.add(name)
        self.rig.engine.cancel(name)

    @rule(count=st.integers(1, 9))
    def step(self, count: int) -> None:
        self.rig.step(count)

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        steps = sum(len(prompt.tokens) for prompt in self.prompts.values())
        self.rig.until(lambda: not self.rig.engine.busy, steps_max=2 * steps + 50)
        assert not self.rig.cache.leases
        assert self.rig.lanes.free == len(self.rig.lanes), "somebody waits for ever"
        for name, prompt in self.prompts.items():
            ending = self.rig.finished(name)
            if ending.reason is not FinishReason.CANCELLED:
                assert self.rig.tokens(name) == self.alone(prompt)
        assert read(self.rig) <= self.bound()

    def bound(self) -> int:
        """Each token once, but what who left has read, and what there is no boundary in."""
        prompts = list(self.prompts.values())
        tails = sum(len(TAILS[0]) for _ in prompts)
        return unavoidable(prompts) + self.spent + tails

    def alone(self, prompt: Prompt) -> list[int]:
        key = (prompt.tokens, bool(self.layout.state))
        if key not in COLD:
            request = request_of("alone", prompt, max_tokens=2)
            COLD[key] = cold_text(self.folder, self.layout, request)
        return COLD[key]


COLD: dict[tuple[tuple[int, ...], bool], list[int]] = {}


def test_whoever_comes_and_goes_all_are_answered_and_little_is_read_twice(tmp_path) -> None:
    Arrivals.folder = tmp_path
    run_state_machine_as_test(
        Arrivals,
        settings=settings(max_examples=50, stateful_step_count=20, deadline=None, derandomize=True),
    )


prompts = st.builds(
    family, st.lists(st.integers(0, 2), max_size=4).map(tuple), NAMES, st.booleans()
)


@layouts
@given(together=st.lists(prompts, min_size=2, max_size=4))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_of_any_prompts_that_arrive_together_nothing_is_read_twice(
    tmp_path_factory: pytest.TempPathFactory, layout: MemoryLayout, together: list[Prompt]
) -> None:
    rig = Rig(tmp_path_factory.getbasetemp(), layout=layout, lanes=4)
    rig.run(*(request_of(f"r{n}", prompt, max_tokens=1) for n, prompt in enumerate(together)))
    assert read(rig) == unavoidable(together)


@layouts
@pytest.mark.parametrize("reuse", [True, False])
def test_nobody_waits_for_one_who_keeps_nothing(tmp_path, layout, reuse: bool) -> None:
    """Because it reuses nothing, or because nothing of it fits."""
    rig = Rig(tmp_path, layout=layout, lanes=2, cache_bytes=64 if reuse else 2**20)
    leader = prompt_of(HEAD[:100], some_tokens(91, 120))
    rig.engine.submit(replace(request_of("leader", leader), reuse=reuse))
    rig.step(2)
    rig.engine.submit(user(0, head=HEAD[:100]))
    rig.until(lambda: rig.tokens("user 0"))
    assert not rig.tokens("leader")
    assert rig.cache.tally.of(WAITS) == 0
    rig.until(lambda: not rig.engine.busy)


@layouts
def test_who_followed_has_missed_nothing(tmp_path, layout) -> None:
    rig = Rig(tmp_path, layout=layout, lanes=2)
    rig.run(user(0), user(1))
    hits, misses = rig.cache.tally.of(HITS), rig.cache.tally.of(MISSES)
    assert (hits, misses) == (1, 1)


def test_the_shared_part_is_what_was_meant() -> None:
    """The tests themselves."""
    assert len(HEAD) == 0.95 * (len(HEAD) + len(TAILS[0]))
    assert len({tail[0] for tail in TAILS}) == USERS
    assert np.unique([len(tail) for tail in TAILS]).size == 1

"""Who has a lane next: an order that nobody loses for ever."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from flm.core.event import Admitted
from flm.core.request import Priority
from flm.core.sequence import Phase, Sequence
from flm.engine.precedence import PASSED_MAX, Precedence, urgent
from flm.prefix.cache import PrefixCache
from tests.engine.rig import Rig, prompt_of, request_of, some_tokens

CLASSES = [Priority.INTERACTIVE, Priority.AGENT]
OWNERS = ["", "one", "two"]
arrivals = st.tuples(st.sampled_from(CLASSES), st.sampled_from(OWNERS), st.integers(0, 3))
HEADS = [some_tokens(seed, 20 * seed) for seed in range(4)]


def empty_cache() -> PrefixCache:
    return PrefixCache(
        bytes_max=0, slots_max=None, gain_min=1, row_bytes=1, state_bytes=0,
        log=lambda line: None, warn=lambda line: None,
    )  # fmt: skip


@given(st.lists(st.lists(arrivals, max_size=4), min_size=1, max_size=40), st.integers(0, 5))
def test_nobody_is_passed_more_often_than_the_bound(rounds, parked) -> None:
    """One lane comes free a round, whoever comes."""
    precedence, waiting, passed = Precedence(empty_cache(), {}), [], Counter()
    number = 0
    for arriving in [*rounds, *([[]] * 200)]:
        for priority, owner, head in arriving:
            number += 1
            request = request_of(f"r{number}", (*HEADS[head], number), priority=priority)
            sequence = Sequence(replace(request, owner=owner), 0.0, number=number)
            sequence.phase = Phase.DECODE if number % 7 < parked else Phase.WAITING
            waiting.append(sequence)
        if not waiting:
            continue
        chosen = precedence.next(waiting)
        waiting.remove(chosen)
        precedence.note(chosen, waiting)
        for each in waiting:
            passed[each] += each.number < chosen.number
    assert not waiting
    assert max(passed.values(), default=0) <= PASSED_MAX


@given(st.lists(arrivals, min_size=1, max_size=12))
def test_a_person_is_before_a_program_while_nobody_was_passed_too_often(arriving) -> None:
    waiting = [
        Sequence(request_of(f"r{at}", (at + 20,), priority=priority, owner=owner), 0.0, number=at)
        for at, (priority, owner, _) in enumerate(arriving)
    ]
    chosen = Precedence(empty_cache(), {}).next(waiting)
    assert urgent(chosen) or not any(map(urgent, waiting))


def admitted(rig: Rig) -> list[str]:
    return [event.request_id for event in rig.events if isinstance(event, Admitted)]


def test_owners_have_lanes_in_turn_however_many_requests_they_send(tmp_path) -> None:
    rig = Rig(tmp_path, lanes=1, queue_max=20)
    for each in range(6):
        rig.engine.submit(request_of(f"flood {each}", some_tokens(each, 9), owner="flood"))
    for each in range(2):
        rig.engine.submit(request_of(f"few {each}", some_tokens(30 + each, 9), owner="few"))
    rig.run()
    assert admitted(rig)[:5] == ["flood 0", "few 0", "flood 1", "few 1", "flood 2"]


def test_an_owner_with_fewer_lanes_is_next(tmp_path) -> None:
    rig = Rig(tmp_path, lanes=3, queue_max=20)
    for each in range(4):
        rig.engine.submit(request_of(f"flood {each}", some_tokens(each, 9), owner="flood"))
    rig.engine.submit(request_of("few 0", some_tokens(30, 9), owner="few"))
    rig.engine.submit(request_of("few 1", some_tokens(31, 9), owner="few"))
    rig.step(3)
    assert Counter(name.split()[0] for name in admitted(rig)) == {"flood": 2, "few": 1}


def test_who_shares_the_longest_beginning_with_what_is_kept_is_next(tmp_path) -> None:
    head = some_tokens(1, 50)
    rig = Rig(tmp_path, lanes=1, queue_max=20)
    rig.run(request_of("before", prompt_of(head[:30], head[30:])))
    rig.events.clear()
    rig.engine.submit(request_of("alone", some_tokens(5, 60)))
    rig.engine.submit(request_of("some", (*head[:30], *some_tokens(6, 9))))
    rig.engine.submit(request_of("most", (*head, *some_tokens(7, 9))))
    rig.run()
    assert admitted(rig) == ["most", "some", "alone"]


def test_who_shares_with_what_is_being_read_is_next(tmp_path) -> None:
    prompt = some_tokens(1, 120)
    rig = Rig(tmp_path, lanes=2, queue_max=20)
    rig.engine.submit(request_of("short", some_tokens(4, 3), max_tokens=1))
    rig.engine.submit(request_of("reader", prompt))
    rig.engine.submit(request_of("other", some_tokens(5, 9)))
    rig.engine.submit(request_of("alike", (*prompt[:100], *some_tokens(6, 9))))
    rig.until(lambda: len(admitted(rig)) == 3)
    assert admitted(rig) == ["short", "reader", "alike"]


def test_what_is_kept_decides_nothing_between_a_person_and_a_program(tmp_path) -> None:
    head = some_tokens(1, 50)
    rig = Rig(tmp_path, lanes=1, queue_max=20)
    rig.run(request_of("before", head))
    rig.engine.submit(request_of("agent", (*head, 20), priority=Priority.AGENT))
    rig.engine.submit(request_of("person", some_tokens(5, 60)))
    rig.run()
    assert admitted(rig) == ["before", "person", "agent"]

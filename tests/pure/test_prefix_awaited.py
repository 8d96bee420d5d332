"""What waits for a tool is awaited until the tool is late, and no longer than that."""

from collections import Counter
from dataclasses import replace

import pytest

from flm.core.prompt import BoundaryKind
from flm.prefix.awaited import AWAITED_S_MAX, TIMES_MAX, TOOLS_MAX, WAITS_MAX, Awaited
from flm.prefix.cache import PrefixCache
from flm.prefix.eviction import density, pinning
from flm.prefix.lease import Manners
from flm.prefix.overview import overview
from flm.prefix.tally import AWAITED, Tally
from tests.pure.toy import ROW_BYTES, Toy, both, prompt, serve, snapshot_bytes, text, toy_cache

ASKED = text(1, 30)
RESULTS = [*ASKED, *text(2, 10)]
SLOT = 7


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def taught(tool: str, *times_s: float) -> Awaited:
    """That it took so long."""
    known = Awaited(Tally())
    for took_s in times_s:
        teach(known, tool, took_s)
    return known


def teach(known: Awaited, tool: str, took_s: float) -> None:
    known.called(prompt(ASKED, opener=28, end=30), [tool], None, 0.0)
    known.went_on(prompt(RESULTS), took_s)


def call(known: Awaited, tool: str, now: float = 0.0) -> None:
    known.called(prompt(ASKED, opener=28, end=30), [tool], SLOT, now)


def test_nine_results_of_ten_come_while_they_are_awaited() -> None:
    known = taught("test", *range(1, 12))
    call(known, "test", 100.0)
    assert known.slots(109.9) == {SLOT}
    assert known.left_s(SLOT, 109.5) == pytest.approx(0.5)
    assert known.slots(110.0) == set(), "nine of ten were back by now"
    assert known.left_s(SLOT, 110.0) is None


def test_nothing_is_awaited_of_a_tool_that_nobody_knows() -> None:
    known = taught("test", 40.0)
    call(known, "read")
    assert known.slots(0.0) == set()
    known.called(prompt(ASKED, end=30), ["test", "read"], SLOT, 0.0)
    assert known.slots(0.0) == set(), "two at once are another thing than each of them"


def test_the_order_of_calls_and_how_often_do_not_matter() -> None:
    known = Awaited(Tally())
    for tools in (["read", "test", "read"], ["test", "read"]):
        known.called(prompt(ASKED, end=30), tools, SLOT, 0.0)
        awaits = known.slots(1.0)
        known.went_on(prompt(RESULTS), 5.0)
    assert awaits == {SLOT}


def test_no_tool_is_waited_for_longer_than_the_bound() -> None:
    known = taught("approve", 3600.0)
    call(known, "approve")
    assert known.slots(AWAITED_S_MAX - 1) == {SLOT}
    assert known.slots(AWAITED_S_MAX) == set()


def test_the_latest_times_count() -> None:
    known = taught("build", *[100.0] * TIMES_MAX, *[1.0] * TIMES_MAX)
    call(known, "build")
    assert known.left_s(SLOT, 0.0) == 1.0


def test_until_it_has_a_lane_a_prompt_is_awaited_and_then_no_more() -> None:
    known = taught("read", 2.0)
    call(known, "read")
    known.came(prompt(RESULTS), 1.0)
    assert known.slots(3.0) == {SLOT}, "it has come, and waits its turn"
    assert known.slots(1.0 + AWAITED_S_MAX) == set(), "but not for ever"
    known.went_on(prompt(RESULTS), 50.0)
    assert known.slots(50.0) == set()
    call(known, "read")
    assert known.left_s(SLOT, 0.0) == 1.0, "its own wait for a lane is no tool's time"


@pytest.mark.parametrize(
    "other",
    [
        prompt(ASKED, end=30),
        prompt(text(3, 60), end=60),
        prompt([*ASKED[:27], *text(4, 30)], end=57),
    ],
    ids=["the same again", "another", "parts before"],
)
def test_only_what_goes_on_from_it_ends_a_wait(other) -> None:
    known = taught("read", 9.0)
    call(known, "read")
    known.went_on(other, 1.0)
    assert known.slots(2.0) == {SLOT}


def test_each_domain_has_its_own_tools_and_waits() -> None:
    known = taught("read", 9.0)
    theirs = replace(prompt(ASKED, opener=28), domain="other")
    known.called(theirs, ["read"], SLOT, 0.0)
    assert known.slots(0.0) == set(), "what is known of tools is not told to others"
    call(known, "read")
    known.went_on(replace(prompt(RESULTS), domain="other"), 1.0)
    assert known.slots(1.0) == {SLOT}
    known.forget("other")
    assert known.slots(1.0) == {SLOT}
    known.forget("")
    assert known.slots(1.0) == set()
    call(known, "read", 1.0)
    assert known.slots(1.0) == set()


def test_what_is_known_is_bounded() -> None:
    known = taught("read", 9.0)
    for number in range(WAITS_MAX + 5):
        known.called(prompt(text(number, 9), end=9), ["read"], 100 + number, 0.0)
        known.check()
    assert known.slots(1.0) == set(range(105, WAITS_MAX + 105)), "the latest"
    for number in range(TOOLS_MAX + 5):
        teach(known, str(number), 1.0)
        known.check()
    call(known, "read")
    assert known.left_s(SLOT, 0.0) is None, "learned longest ago"


def test_who_calls_a_lot_pushes_out_nothing_of_others() -> None:
    known = Awaited(Tally())
    theirs = replace(prompt(ASKED, end=30), domain="other")
    results = replace(prompt(RESULTS), domain="other")
    known.called(theirs, ["read"], SLOT, 0.0)
    known.went_on(results, 9.0)
    known.called(theirs, ["read"], SLOT, 0.0)
    for number in range(WAITS_MAX + TOOLS_MAX):
        teach(known, str(number), 9.0)
        known.called(prompt(text(number, 9), end=9), ["read"], None, 0.0)
        known.check()
    assert known.slots(1.0) == {SLOT}
    another = replace(prompt(text(3, 30), end=30), domain="other")
    known.called(another, ["read"], SLOT + 1, 0.0)
    assert known.slots(1.0) == {SLOT, SLOT + 1}, "how long their tools take is known still"


def test_domains_that_call_a_lot_come_to_have_as_many_waits() -> None:
    known = Awaited(Tally())
    for domain in ("", "other"):
        for number in range(WAITS_MAX):
            theirs = replace(prompt(text(number, 9), end=9), domain=domain)
            known.called(theirs, ["read"], None, 0.0)
    assert Counter(domain for domain, _ in known._waits) == {"": 64, "other": 64}


def test_beginnings_alike_in_their_last_tokens_are_told_apart() -> None:
    known = taught("read", 9.0)
    call(known, "read")
    other = [*text(3, 10), *ASKED[10:], *text(2, 10)]
    known.went_on(prompt(other), 1.0)
    assert known.slots(2.0) == {SLOT}


def test_results_are_counted_by_when_they_came() -> None:
    known = taught("read", 9.0)
    for took_s in (5.0, 20.0):
        call(known, "read")
        known.came(prompt(RESULTS), took_s)
        known.went_on(prompt(RESULTS), took_s + 30)
    counts = {labels: count for (_, labels), count in known._tally.counts.items()}
    assert counts == {("first",): 1, ("in_time",): 1, ("late",): 1}
    assert known._tally.of(AWAITED) == 3


def room_for_two(*, hybrid: bool, pins: bool) -> tuple[PrefixCache, Clock]:
    clock = Clock()
    cache = toy_cache(
        hybrid=hybrid,
        bytes_max=2 * snapshot_bytes(30, hybrid=hybrid) + 3 * ROW_BYTES,
        policy=pinning if pins else density,
    )
    cache.clock = clock
    return cache, clock


def waiting(cache: PrefixCache, known: Awaited) -> None:
    """One that called a tool, and another used since."""
    cache.awaited = known
    serve(cache, ASKED, opener=30)
    cache.called(prompt(ASKED, opener=30), ["look"])


def kept(cache: PrefixCache, tokens: list[int]) -> bool:
    return cache.look(prompt([*tokens, 1])).offset == len(tokens)


@both
@pytest.mark.parametrize(("after_s", "stays"), [(8.0, True), (10.0, False)])
def test_who_waits_stays_until_the_tool_is_late(hybrid: bool, after_s: float, stays: bool) -> None:
    cache, clock = room_for_two(hybrid=hybrid, pins=True)
    waiting(cache, taught("look", 9.0))
    clock.now = after_s
    serve(cache, text(5, 30), opener=30)
    serve(cache, text(6, 30), opener=30)
    assert kept(cache, ASKED) == stays
    assert kept(cache, text(6, 30))


@both
def test_a_pin_forbids_nothing(hybrid: bool) -> None:
    """All that is there waits: room is made all the same, and the budget holds."""
    cache, _ = room_for_two(hybrid=hybrid, pins=True)
    waiting(cache, taught("look", 9.0))
    serve(cache, text(5, 30), opener=30)
    cache.called(prompt(text(5, 30), opener=30), ["look"])
    assert len(cache.awaited.slots(0.0)) == 2
    serve(cache, text(6, 30), opener=30)
    assert kept(cache, text(6, 30))


@both
def test_other_policies_take_no_notice(hybrid: bool) -> None:
    cache, _ = room_for_two(hybrid=hybrid, pins=False)
    waiting(cache, taught("look", 9.0))
    serve(cache, text(5, 30), opener=30)
    serve(cache, text(6, 30), opener=30)
    assert not kept(cache, ASKED)


@both
def test_what_is_read_ahead_is_awaited_in_place_of_what_it_outgrows(hybrid: bool) -> None:
    cache = toy_cache(hybrid=hybrid, policy=pinning)
    waiting(cache, taught("look", 900.0))
    ahead = prompt(RESULTS, opener=40)
    lease, toy = cache.lease(ahead, manners=Manners.MODEST), Toy(hybrid=hybrid)
    toy.read(RESULTS)
    assert lease.keep(ahead.boundaries[0], toy.save)
    lease.close()
    shown = {each.end: each.awaited_s for each in overview(cache, "").stretches if each.slot}
    assert shown[30] is None
    assert shown[40] is not None
    assert 0 < shown[40] <= AWAITED_S_MAX
    serve(cache, [*RESULTS, *text(3, 5)])
    assert not cache.awaited.slots(cache.clock())


def test_a_call_of_what_is_not_kept_is_learned_from() -> None:
    cache = toy_cache(bytes_max=0)
    clock = cache.clock = Clock()
    cache.called(prompt(ASKED, opener=30), ["look"])
    clock.now = 9.0
    serve(cache, RESULTS)
    cache.awaited.called(prompt(ASKED, opener=30), ["look"], SLOT, clock.now)
    assert cache.awaited.left_s(SLOT, clock.now) == 9.0


def test_the_end_is_not_what_is_awaited() -> None:
    """The next prompt parts before it."""
    cache = toy_cache()
    cache.awaited = taught("look", 900.0)
    serve(cache, ASKED, opener=28, end=30)
    cache.called(prompt(ASKED, opener=28, end=30), ["look"])
    (number,) = cache.awaited.slots(cache.clock())
    slot = cache.slots[number].slot
    assert slot is not None
    assert slot.kind is BoundaryKind.OPENER

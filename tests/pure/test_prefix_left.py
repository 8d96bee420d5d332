"""Models that take turns without a disk: each finds what it left, and all share one budget."""

from collections.abc import Iterable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flm.prefix.cache import PrefixCache
from flm.prefix.lease import Manners
from flm.prefix.left import Left
from tests.pure.toy import begin, cold, prompt, toy_cache

MODELS = ("ant", "bee", "cow")


class Turns(RuleBasedStateMachine):
    """`went`: models in order of going; ids of each differ, so nothing of another's can serve."""

    @initialize(
        bytes_max=st.sampled_from([200, 400, 800, 3000]),
        slots_max=st.sampled_from([None, None, 2, 5]),
        hybrid=st.booleans(),
    )
    def open(self, bytes_max: int, slots_max: int | None, hybrid: bool) -> None:
        self.limits = {"bytes_max": bytes_max, "slots_max": slots_max, "hybrid": hybrid}
        self.left, self.went = Left(), list[str]()
        self.kept: dict[str, int] = {}  # snapshots when a model went
        self.come("ant")

    def come(self, model: str) -> None:
        self.left.fit(self.limits["bytes_max"], self.limits["slots_max"])
        self.here, self.cache = model, self.left.come(model, toy_cache(**self.limits))
        self.went = [each for each in self.went if each != model]

    @rule(model=st.sampled_from(MODELS))
    def swap(self, model: str) -> None:
        if model == self.here:
            return
        before = self.cache.slot_count
        self.left.stay()
        self.went.append(self.here)
        self.kept[self.here] = before
        self.come(model)

    @rule(
        tokens=st.lists(st.integers(0, 2), min_size=2, max_size=12),
        modest=st.booleans(),
        data=st.data(),
    )
    def ask(self, tokens: list[int], modest: bool, data: Any) -> None:
        tokens = [token + 10 * MODELS.index(self.here) for token in tokens]
        turn = data.draw(st.integers(1, len(tokens) - 1))
        request = prompt(tokens, turn=turn, end=len(tokens))
        others = self.left.slot_count
        manners = Manners.MODEST if modest else Manners.USUAL
        lease, toy = begin(self.cache, request, manners=manners)
        for boundary in request.boundaries:
            toy.read(tokens[toy.length : boundary.offset])
            if lease.wants(boundary):
                lease.keep(boundary, toy.save)
        toy.read(tokens[toy.length :])
        lease.close()
        assert toy.logits().tobytes() == cold(tokens, hybrid=self.limits["hybrid"])
        assert not modest or self.left.slot_count == others, "idle work pushes nobody out"

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        assert self.left.slot_count == self.cache.slot_count == 0

    @invariant()
    def one_budget(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        self.left.check()
        assert self.cache.bytes_kept + self.left.bytes <= self.limits["bytes_max"]
        if (most := self.limits["slots_max"]) is not None:
            assert self.cache.slot_count + self.left.slot_count <= most

    @invariant()
    def who_went_first_gives_up_first(self) -> None:
        if not hasattr(self, "cache"):
            return
        left = {name: cache.slot_count for name, cache in self.left._caches.items()}
        order = [name for name in self.went if self.kept[name]]
        lacking = [left.get(name, 0) < self.kept[name] for name in order]
        if left and self.left.slot_count:
            first = next(at for at, name in enumerate(order) if name in left)
            assert not any(lacking[first + 1 :]), "a later one gave up before it was empty"


Turns.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTurns = Turns.TestCase


def test_who_comes_back_resumes_where_it_was() -> None:
    left = Left()
    assert read(left.come("ant", toy_cache()), range(9)) == 0
    left.stay()
    assert read(left.come("bee", toy_cache()), range(9)) == 0
    left.stay()
    assert read(left.come("ant", toy_cache()), range(9)) == 9


def test_limits_are_those_of_who_comes() -> None:
    """The same file under another name may be bounded otherwise."""
    left = Left()
    first = left.come("ant", toy_cache())
    for start in (0, 20, 40):
        read(first, range(start, start + 9))
    assert first.slot_count == 3
    left.stay()
    left.fit(1_000_000, 2)
    again = left.come("ant", toy_cache(slots_max=2))
    assert again.slot_count == 2
    read(again, range(60, 69))
    assert again.slot_count == 2


def read(cache: PrefixCache, ids: Iterable[int]) -> int:
    """How much of it was kept."""
    tokens = list(ids)
    request = prompt(tokens, end=len(tokens))
    lease, toy = begin(cache, request)
    toy.read(tokens[toy.length :])
    for boundary in request.boundaries:
        if lease.wants(boundary):
            lease.keep(boundary, toy.save, toy.logits())
    offset = lease.offset
    lease.close()
    return offset

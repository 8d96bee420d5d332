"""Warm equals cold and the budget is a bound: any traffic, any budget, with and without state."""

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.memory.snapshot import Snapshot
from flm.prefix.addition import Addition
from flm.prefix.awaited import AWAITED_S_MAX, QUANTILE
from flm.prefix.eviction import POLICIES, pinning
from flm.prefix.lease import Lease, Manners
from flm.prefix.outgrown import outgrown
from flm.prefix.ranks import RANK, SHARED
from flm.prefix.room import Standing, candidates, standing
from flm.prefix.stake import stake
from flm.prefix.trie import TOKEN_BYTES, Node
from tests.pure.toy import ROW_BYTES, STATE_BYTES, Log, Toy, begin, cold, toy_cache


@dataclass(eq=False)
class Running:
    prompt: Prompt
    lease: Lease
    toy: Toy


@dataclass(eq=False)
class Called:
    """A reply that called a tool, and the slots that wait for what it says."""

    tokens: tuple[int, ...]
    way: tuple[int, ...]
    tool: str
    since_s: float
    until_s: float
    slots: set[int]


@dataclass
class CalledSlowly:
    """What flm.prefix.awaited does, with the tokens themselves."""

    calls: list[Called] = field(default_factory=list)
    took_s: dict[str, list[float]] = field(default_factory=dict)

    def add(self, prompt: Prompt, tool: str, slots: set[int], now: float) -> None:
        offsets = [b.offset for b in prompt.boundaries if b.kind is not BoundaryKind.END]
        way = prompt.tokens[: offsets[-1]] if offsets else prompt.tokens
        took_s = sorted(self.took_s.get(tool, []))
        likely_s = took_s[int(QUANTILE * (len(took_s) - 1))] if took_s else 0.0
        until_s = now + min(likely_s, AWAITED_S_MAX)
        self.calls = [each for each in self.calls if each.way != way]
        self.calls.append(Called(prompt.tokens, way, tool, now, until_s, slots))

    def before(self, tokens: tuple[int, ...]) -> Iterator[Called]:
        for each in list(self.calls):
            if len(tokens) > len(each.tokens) and tokens[: len(each.way)] == each.way:
                yield each

    def went_on(self, tokens: tuple[int, ...], now: float) -> None:
        for each in self.before(tokens):
            self.took_s.setdefault(each.tool, []).append(now - each.since_s)
            self.calls.remove(each)

    def awaited(self, now: float) -> set[int]:
        return {slot for each in self.calls if each.until_s > now for slot in each.slots}


class SaveFailed(Exception):
    pass


def tokens_to(node: Node) -> tuple[int, ...]:
    packed = b"".join(each.tokens for each in reversed(list(node.path())))
    return struct.unpack(f"{len(packed) // TOKEN_BYTES}i", packed)


def len_common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))


def outgrown_slowly(node: Node) -> bool:
    """Against every snapshot below."""
    slot = node.slot
    assert slot
    below = [each.slot for each in node.below() if each.slot and each is not node]
    return slot.kind not in SHARED and any(
        each.kind not in SHARED
        and RANK[each.kind] >= RANK[slot.kind]
        and each.used_at > slot.used_at
        for each in below
    )


class Traffic(RuleBasedStateMachine):
    """Conversations that share prefixes, several at a time, kept at boundaries drawn at random."""

    hybrid = True
    running = Bundle("running")

    @initialize(
        bytes_max=st.sampled_from([0, 60, 120, 200, 300, 500, 800, 1_000_000]),
        slots_max=st.sampled_from([None, None, 1, 2, 4]),
        gain_min=st.sampled_from([1, 1, 3]),
        policy=st.sampled_from(sorted(POLICIES)),
    )
    def start(self, bytes_max: int, slots_max: int | None, gain_min: int, policy: str) -> None:
        log = Log()
        self.cache = toy_cache(
            hybrid=self.hybrid,
            bytes_max=bytes_max,
            slots_max=slots_max,
            gain_min=gain_min,
            log=log,
            policy=POLICIES[policy],
        )
        self.log = log
        self.now = 0.0
        self.cache.clock = lambda: self.now
        self.called = CalledSlowly()
        self.history: list[tuple[int, ...]] = [(70_000, 1, 2)]

    def draw(self, data: Any) -> Prompt:
        """One that begins like another, mostly."""
        base = data.draw(st.sampled_from(self.history))
        cut = data.draw(st.integers(0, len(base)))
        return self.going_on(data, base[:cut], more_min=not cut)

    def draw_results(self, data: Any) -> Prompt:
        """What a tool says, after what called it."""
        tokens = data.draw(st.sampled_from([each.tokens for each in self.called.calls]))
        return self.going_on(data, tokens, more_min=1)

    def going_on(self, data: Any, tokens: tuple[int, ...], *, more_min: int) -> Prompt:
        tokens += tuple(data.draw(st.lists(st.integers(0, 1), min_size=more_min, max_size=8)))
        offsets = data.draw(st.sets(st.integers(1, len(tokens)), max_size=3)) | {len(tokens)}
        kinds = {at: data.draw(st.sampled_from(BoundaryKind)) for at in offsets}
        kinds[len(tokens)] = BoundaryKind.END
        return Prompt(tokens, tuple(Boundary(at, kinds[at]) for at in sorted(kinds)))

    @rule(target=running, data=st.data())
    def admit(self, data: Any) -> Running:
        return self.admitted(self.draw(data))

    @precondition(lambda self: self.called.calls)
    @rule(target=running, data=st.data())
    def admit_results(self, data: Any) -> Running:
        return self.admitted(self.draw_results(data))

    def admitted(self, request: Prompt) -> Running:
        tokens = request.tokens
        expected = self.longest_kept(tokens)
        self.called.went_on(tokens, self.now)
        lease, toy = begin(self.cache, request)
        assert lease.offset == expected
        if self.cache.bytes_max:
            assert ("resuming" in self.log.lines[-1]) == (lease.offset > 0)
        assert (lease.logits is not None) == (lease.offset == len(tokens))
        if lease.logits is not None:
            assert lease.logits.tobytes() == cold(tokens, hybrid=self.hybrid)
        elif lease.offset:
            assert toy.logits().tobytes() == cold(tokens[: lease.offset], hybrid=self.hybrid)
        self.history.append(tokens)
        return Running(request, lease, toy)

    @rule(running=running, fails=st.integers(0, 5))
    def advance(self, running: Running, fails: int) -> None:
        """To the next boundary, and keep there, unless the save fails."""
        tokens, lease, toy = running.prompt.tokens, running.lease, running.toy
        for boundary in running.prompt.boundaries:
            if boundary.offset > toy.length:
                break
        else:
            return
        toy.read(tokens[toy.length : boundary.offset])
        logits = toy.logits() if boundary.offset == len(tokens) else None
        if fails == 5:
            with suppress(SaveFailed):  # nor need it save at all
                lease.keep(boundary, self.failing(), logits)
        elif lease.wants(boundary):
            lease.keep(boundary, self.saving(toy), logits)

    @rule(running=running, data=st.data())
    def keep_again(self, running: Running, data: Any) -> None:
        """What was kept is kept still, and nothing is saved for it."""
        boundary = data.draw(st.sampled_from(running.prompt.boundaries))
        toy, kept = running.toy, self.cache.bytes_kept
        if toy.length == boundary.offset and running.lease.keep(boundary, self.saving(toy)):
            kept = self.cache.bytes_kept
            assert running.lease.keep(boundary, self.failing())
            assert self.cache.bytes_kept == kept

    @rule(running=consumes(running))
    def finish(self, running: Running) -> None:
        running.lease.close()

    @rule(running=consumes(running), tool=st.sampled_from(["look", "find"]))
    def call(self, running: Running, tool: str) -> None:
        """It ends with a call: the deepest that is kept of it, its end aside, is awaited."""
        running.lease.close()
        tokens = running.prompt.tokens
        lengths = {
            len(tokens_to(node)): number
            for number, node in self.cache.slots.items()
            if node.slot and node.slot.kind is not BoundaryKind.END
            if tokens_to(node) == tokens[: node.end]
        }
        self.called.add(
            running.prompt, tool, {lengths[max(lengths)]} if lengths else set(), self.now
        )
        self.cache.called(running.prompt, [tool])

    @rule(seconds=st.sampled_from([0.5, 3.0, 30.0, 300.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(data=st.data())
    def read_ahead(self, data: Any) -> None:
        """Whoever waits for what this goes on from waits for what is kept of it."""
        prompt = self.draw_results(data) if self.called.calls else self.draw(data)
        lease, toy = begin(self.cache, prompt, manners=Manners.MODEST)
        for boundary in prompt.boundaries:
            toy.read(prompt.tokens[toy.length : boundary.offset])
            before = set(self.cache.slots)
            if lease.wants(boundary) and lease.keep(boundary, self.saving(toy)):
                for each in self.called.before(prompt.tokens):
                    each.slots |= set(self.cache.slots) - before
        lease.close()

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check()

    @invariant()
    def nothing_remembered_is_stale(self) -> None:
        """Who is outgrown, and what is at stake, are as they would be if counted anew."""
        if not hasattr(self, "cache") or not self.cache.trie.roots:
            return
        for node in self.cache.slots.values():
            assert node.slot
            assert outgrown(node) == outgrown_slowly(node)
            assert node.slot.stake in (None, stake(node, (), ROW_BYTES))
        for addition in self.additions():
            self.compare(standing(self.cache, addition), addition)

    def additions(self) -> list[Addition]:
        """What the next requests may bring."""
        state_bytes = STATE_BYTES if self.hybrid else 0
        return [
            Addition("", Prompt(tokens, ()).packed, kind, ROW_BYTES, state_bytes, 0, modest=modest)
            for tokens in self.history[-2:]
            for kind in (BoundaryKind.END, BoundaryKind.TURN, BoundaryKind.HEAD)
            for modest in (False, True)
        ]

    def compare(self, stand: Standing, addition: Addition) -> None:
        cache = self.cache
        assert set(stand.loose) | set(stand.stuck) == set(cache.slots.values())
        way = set(cache.trie.find("", addition.tokens).node.path())
        for node, old in stand.loose.items():
            assert node.slot
            about_to_be = (
                addition.kind not in SHARED
                and RANK[node.slot.kind] <= RANK[addition.kind]
                and node in way
                and node.end < addition.offset
            )
            assert old == (outgrown_slowly(node) or about_to_be)
        given, awaited = (
            list(candidates(cache, stand, any_will_do=True)),
            self.called.awaited(self.now),
        )
        for each in given:
            plain = stake(cache.slots[each.number], stand.held, ROW_BYTES)
            assert (each.tokens_saved, each.bytes_freed) == plain
            assert each.awaited == (each.number in awaited and not each.outgrown)
        if (going := pinning(given)) and going.awaited:
            assert all(each.awaited for each in given)

    def longest_kept(self, tokens: tuple[int, ...]) -> int:
        """The slow way: against every kept snapshot."""
        best = 0
        for node in self.cache.trie.nodes():
            if node.slot and not node.slot.doomed:
                kept = tokens_to(node)
                common = len_common(kept, tokens)
                if kept == tokens and node.slot.logits is not None:
                    return len(tokens)
                if not self.hybrid:
                    best = max(best, min(common, len(tokens) - 1))
                elif len(kept) == common < len(tokens):
                    best = max(best, common)
        return best

    def saving(self, toy: Toy) -> Any:
        def save(start: int, end: int) -> Snapshot:
            coming = (end - start) * ROW_BYTES + (STATE_BYTES if self.hybrid else 0)
            assert self.cache.bytes_kept + coming <= self.cache.bytes_max
            return toy.save(start, end)

        return save

    def failing(self) -> Any:
        def save(start: int, end: int) -> Snapshot:
            raise SaveFailed

        return save

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            for lease in list(self.cache.leases):
                lease.close()
            self.cache.check()


class StatelessTraffic(Traffic):
    hybrid = False


BUDGET = settings(
    max_examples=120, stateful_step_count=30, deadline=None, derandomize=True, database=None
)
TestHybrid = Traffic.TestCase
TestHybrid.settings = BUDGET
TestStateless = StatelessTraffic.TestCase
TestStateless.settings = BUDGET

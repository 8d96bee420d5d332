"""Which conversations wait for a tool, and until when its result is likely to have come.

After a reply that calls tools comes a prompt with their results, once they have run. How long that
took the last times, with the same tools, tells how long it will: nine times of ten no longer. Until
then what is kept at the conversation's end is *awaited*.

Invariants: at most WAITS_MAX conversations wait, and TOOLS_MAX ways to call tools are known, with
TIMES_MAX times each; of both, whichever domain has most gives up what it has had longest, so none
pushes out what others have. Prompts are known by digests.
"""

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeVar

from flm.core.prompt import BoundaryKind, Prompt
from flm.prefix.beginnings import Beginning, beginnings
from flm.prefix.tally import AWAITED, Tally

QUANTILE = 0.9
AWAITED_S_MAX = 120.0
WAITS_MAX = 128
TOOLS_MAX = 256
TIMES_MAX = 64
NAMES_MAX = 8  # of the tools that one reply calls

Way = tuple[str, Beginning]  # a domain, and what a conversation's next prompt begins with
Tools = tuple[str, tuple[str, ...]]  # a domain, and what one reply called there


Each = TypeVar("Each")


@dataclass(eq=False, slots=True)
class Wait:
    tools: Tools
    length: int  # tokens of the prompt, which is shorter than one with the results
    since_s: float
    until_s: float  # until then its slots are awaited
    slots: set[int]
    came: bool = False  # the results did; their prompt waits for a lane


class Awaited:
    """Times are those of the cache's clock."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._waits: dict[Way, Wait] = {}  # by when they called
        self._took_s: dict[Tools, deque[float]] = {}  # by when they last came

    def called(self, prompt: Prompt, tools: Collection[str], slot: int | None, now: float) -> None:
        """The reply to `prompt` has ended and called `tools`; `slot` is what is kept of it."""
        way, called = _way(prompt), (prompt.domain, tuple(sorted(set(tools))[:NAMES_MAX]))
        until_s = now + min(self._likely_s(called), AWAITED_S_MAX)
        slots = set() if slot is None else {slot}
        self._waits.pop(way, None)
        self._waits[way] = Wait(called, len(prompt.tokens), now, until_s, slots)
        if len(self._waits) > WAITS_MAX:
            del self._waits[_oldest_of_most(self._waits)]

    def came(self, prompt: Prompt, now: float) -> None:
        """A prompt has arrived, perhaps with results; until it has a lane they are awaited still,
        unless it never gets one.
        """
        for way in self._gone_on_from(prompt):
            self._came(self._waits[way], now)

    def went_on(self, prompt: Prompt, now: float) -> None:
        """A prompt is being read: whatever it goes on from, it holds itself."""
        for way in self._gone_on_from(prompt):
            self._came(self._waits.pop(way), now)

    def grew(self, prompt: Prompt, slot: int) -> None:
        """More is kept of what the next prompts begin with, by reading ahead."""
        for way in self._gone_on_from(prompt):
            self._waits[way].slots.add(slot)

    def slots(self, now: float) -> set[int]:
        """The numbers of those that are awaited."""
        return {slot for wait in self._waits.values() if wait.until_s > now for slot in wait.slots}

    def left_s(self, slot: int, now: float) -> float | None:
        """For how long it is, None if it is not."""
        waits = (wait for wait in self._waits.values() if slot in wait.slots)
        left_s = max((wait.until_s - now for wait in waits), default=0.0)
        return left_s if left_s > 0 else None

    def forget(self, domain: str | None) -> None:
        """What is known of a domain, or of all."""
        self._waits = {way: one for way, one in self._waits.items() if domain not in (None, way[0])}
        took_s = self._took_s.items()
        self._took_s = {tools: each for tools, each in took_s if domain not in (None, tools[0])}

    def check(self) -> None:
        assert len(self._waits) <= WAITS_MAX
        assert len(self._took_s) <= TOOLS_MAX
        assert all(0 < len(each) <= TIMES_MAX for each in self._took_s.values())

    def _gone_on_from(self, prompt: Prompt) -> list[Way]:
        """Those whose conversation is `prompt`'s, and which it is longer than."""
        domain, packed, waits = prompt.domain, prompt.packed, self._waits
        theirs = (one for of, one in waits if of == domain and one.likely(packed))
        lengths = sorted({one.length for one in theirs})
        ways = ((domain, one) for one in beginnings(packed, lengths))
        return [way for way in ways if way in waits and waits[way].length < len(prompt.tokens)]

    def _likely_s(self, tools: Tools) -> float:
        """How long they take; 0 where nobody knows."""
        took_s = sorted(self._took_s.get(tools, ()))
        return took_s[int(QUANTILE * (len(took_s) - 1))] if took_s else 0.0

    def _came(self, wait: Wait, now: float) -> None:
        if not wait.came:
            self._learn(wait, now)
            wait.came, wait.until_s = True, now + AWAITED_S_MAX

    def _learn(self, wait: Wait, now: float) -> None:
        known = self._took_s.pop(wait.tools, None)
        outcome = "first" if known is None else "in_time" if now < wait.until_s else "late"
        self._tally.add(AWAITED, outcome)
        took_s = self._took_s[wait.tools] = known or deque(maxlen=TIMES_MAX)
        took_s.append(now - wait.since_s)
        if len(self._took_s) > TOOLS_MAX:
            del self._took_s[_oldest_of_most(self._took_s)]


def _oldest_of_most(known: Collection[tuple[str, Each]]) -> tuple[str, Each]:
    """Of the domain that has most of them."""
    counts = Counter(domain for domain, _ in known)
    most = max(counts.values())
    return next(each for each in known if counts[each[0]] == most)


def _way(prompt: Prompt) -> Way:
    """Up to the last place where another prompt may part from it: there the results come."""
    inner = (each.offset for each in prompt.boundaries if each.kind is not BoundaryKind.END)
    (beginning,) = beginnings(prompt.packed, [max(inner, default=len(prompt.tokens))])
    return prompt.domain, beginning

"""The volatility map: which part of a system prompt or of its tools changed, and how often.

Heads that differ from one another in what changes are one *lineage*: a head that parts from an
earlier one (explain's rule b) joins the lineage of that.

Invariants: at most LINEAGES_MAX lineages, the one used longest ago goes first; of each the last
HEADS_MAX heads are known, as digests, and at most CHANGES_MAX changes.
"""

from dataclasses import dataclass, field
from threading import Lock

from flm.core.finding import Finding
from flm.core.prompt import BoundaryKind, Prompt
from flm.prefix.beginnings import Beginning, beginnings
from flm.prefix.changes import Change
from flm.prefix.explain import Explanation
from flm.prefix.trie import TOKEN_BYTES

LINEAGES_MAX = 64
HEADS_MAX = 8
CHANGES_MAX = 16


@dataclass(frozen=True, slots=True)
class Volatile:
    """`place` changed in `times` of the `requests` of a lineage, last at its character `offset`.

    `head` is how many tokens its last head has. `place` is plain: it has no word of the prompt.
    """

    head: int
    requests: int
    place: str
    change: Change
    times: int
    offset: int
    advice: str


@dataclass(eq=False, slots=True)
class _Lineage:
    domain: str
    requests: int = 0
    heads: dict[Beginning, None] = field(default_factory=dict)  # the youngest last
    changes: dict[tuple[str, Change], tuple[int, Explanation]] = field(default_factory=dict)


class Volatility:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._lineages: dict[_Lineage, None] = {}  # used longest ago first
        self._lock = Lock()

    def note(self, finding: Finding, explanation: Explanation | None) -> None:
        """A request, and what was explained of it. One without system and tools has no lineage."""
        if end := _head_end(finding.prompt):
            with self._lock:
                self._note(finding, explanation, end)

    def report(self, domain: str) -> list[Volatile]:
        """What changes most often first."""
        with self._lock:
            return self._report(domain)

    def forget(self, domain: str) -> None:
        with self._lock:
            self._lineages = {one: None for one in self._lineages if one.domain != domain}

    def _note(self, finding: Finding, explanation: Explanation | None, end: int) -> None:
        prompt = finding.prompt
        [head] = beginnings(prompt.packed, [end])
        lineage = self._of(prompt.domain, {head})
        parted = explanation if explanation and _in_head(explanation, end) else None
        if parted and not lineage:
            lineage = self._of(prompt.domain, self._earlier(finding))
        lineage = lineage or _Lineage(prompt.domain)
        lineage.requests += 1
        lineage.heads.pop(head, None)
        lineage.heads[head] = None
        if len(lineage.heads) > HEADS_MAX:
            del lineage.heads[next(iter(lineage.heads))]
        if parted:
            key = parted.place.plain, parted.change
            times = lineage.changes[key][0] if key in lineage.changes else 0
            if times or len(lineage.changes) < CHANGES_MAX:
                lineage.changes[key] = times + 1, parted
        self._lineages.pop(lineage, None)
        self._lineages[lineage] = None
        if len(self._lineages) > LINEAGES_MAX:
            del self._lineages[next(iter(self._lineages))]

    def _report(self, domain: str) -> list[Volatile]:
        rows = [
            Volatile(
                head=next(reversed(lineage.heads)).length,
                requests=lineage.requests,
                place=place,
                change=change,
                times=times,
                offset=last.place.offset,
                advice=last.advice,
            )
            for lineage in self._lineages
            if lineage.domain == domain
            for (place, change), (times, last) in lineage.changes.items()
        ]
        return sorted(rows, key=lambda row: -row.times)

    def _of(self, domain: str, heads: set[Beginning]) -> _Lineage | None:
        """The youngest that has one of the heads."""
        mine = (one for one in reversed(self._lineages) if one.domain == domain)
        return next((one for one in mine if not heads.isdisjoint(one.heads)), None)

    def _earlier(self, finding: Finding) -> set[Beginning]:
        """What would be the head of the earlier prompt, for each length that heads have."""
        lengths = {head.length for one in self._lineages for head in one.heads}
        earlier = finding.prompt.packed[: finding.seen * TOKEN_BYTES] + finding.theirs
        return set(beginnings(earlier, sorted(lengths)))


def _head_end(prompt: Prompt) -> int:
    ends = (one.offset for one in prompt.boundaries if one.kind is BoundaryKind.HEAD)
    return next(ends, 0)


def _in_head(explanation: Explanation, end: int) -> bool:
    lost = explanation.change in (Change.EVICTED, Change.NEVER_CAPTURED)
    return not lost and explanation.differs_at < end

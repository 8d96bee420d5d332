"""Who has a lane next, of those that wait for one and of those that gave one up.

* Whoever was passed by `PASSED_MAX` that came later is next, so nobody waits forever.
* Else what a person waits for goes before a program's; who has begun before who has not; a client
  with fewer lanes before one with more, then the one that was served longest ago; and who shares
  the longest beginning with what is kept or being read, then who came first.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import count

from flm.core.request import Priority
from flm.core.sequence import Phase, Sequence
from flm.engine.active import Active
from flm.engine.following import in_order, shared_length
from flm.prefix.cache import PrefixCache

PASSED_MAX = 8  # lanes that go to who came later, at the most
GRACE = 16  # decode steps, or else one chunk, before who was passed so often may lose its lane
RANK = {priority: rank for rank, priority in enumerate(Priority)}


class Precedence:
    """`actives` are the engine's, by request id."""

    def __init__(self, cache: PrefixCache, actives: Mapping[str, Active]) -> None:
        self._cache = cache
        self._actives = actives
        self._served: dict[str, int] = {}  # owners: counts admissions, the smallest longest ago
        self._ticks = count(1)

    def next(self, candidates: Iterable[Sequence]) -> Sequence:
        candidates = list(candidates)
        if aged := [each for each in candidates if long_without(each)]:
            return min(aged, key=_number)
        lanes = Counter(active.sequence.request.owner for active in self._actives.values())

        def place(sequence: Sequence) -> tuple[int, bool, int, int]:
            owner, fresh = sequence.request.owner, sequence.phase is Phase.WAITING
            rank = RANK[sequence.request.priority]
            return rank, fresh, lanes[owner], self._served.get(owner, 0)

        first = min(map(place, candidates))
        equals = [each for each in candidates if place(each) == first]
        if len(equals) == 1:
            return equals[0]
        return min(equals, key=lambda each: (-self._shared(each), each.number))

    def note(self, admitted: Sequence, candidates: Iterable[Sequence]) -> None:
        """It has a lane, which the others could have had."""
        for each in candidates:
            each.passed += each.number < admitted.number
        admitted.grace = GRACE if long_without(admitted) else 0
        admitted.passed = 0
        self._served[admitted.request.owner] = next(self._ticks)

    def _shared(self, sequence: Sequence) -> int:
        """How much of its prompt is kept, or is being read for another."""
        prompt, trie, kept = sequence.request.prompt, self._cache.trie, 0
        if not sequence.request.reuse:
            return 0
        if prompt.domain in trie.roots:
            match = trie.find(prompt.domain, prompt.packed)
            _, kept = self._cache.start_of(prompt, match)
        reading = in_order(self._actives.values())
        read = (shared_length(prompt, each.sequence.request.prompt) for each in reading)
        return max(kept, *read, 0)


def urgent(sequence: Sequence) -> bool:
    """Whether a person waits for it."""
    return sequence.request.priority is Priority.INTERACTIVE


def long_without(sequence: Sequence) -> bool:
    """It is next, whatever it is."""
    return sequence.passed >= PASSED_MAX


def _number(sequence: Sequence) -> int:
    return sequence.number

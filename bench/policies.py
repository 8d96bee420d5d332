"""Policies that were tried against those of flm.prefix.eviction: bench.prefix compares them all."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from flm.prefix.eviction import Candidate


def lru(candidates: Iterable[Candidate]) -> Candidate | None:
    return min(candidates, key=lambda each: (each.used_at, each.number), default=None)


def per_byte(candidate: Candidate) -> float:
    return candidate.tokens_saved / (candidate.bytes_freed or 1)


class Gdsf:
    """Greedy dual size frequency: H = L + uses * cost / size, L that of the last victim.

    L is taken anew at each use; a use is noticed when room is made next, before L rises again.
    """

    def __init__(self) -> None:
        self.level = 0.0
        self._levels: dict[int, tuple[int, float]] = {}  # number -> (used_at, L then)
        self._uses: dict[int, int] = defaultdict(int)

    def __call__(self, candidates: Iterable[Candidate]) -> Candidate | None:
        worths = {each: self._worth(each) for each in candidates}
        going = min(worths, key=lambda each: (worths[each], each.number), default=None)
        if going:
            self.level = max(self.level, worths[going])
            del self._levels[going.number], self._uses[going.number]
        return going

    def _worth(self, candidate: Candidate) -> float:
        used_at, level = self._levels.get(candidate.number, (None, 0.0))
        if used_at != candidate.used_at:
            level = self.level
            self._levels[candidate.number] = candidate.used_at, level
            self._uses[candidate.number] += 1
        return level + self._uses[candidate.number] * per_byte(candidate)


@dataclass(frozen=True, slots=True)
class Marconi:
    """Recency, from 0 to 1, + `alpha` * tokens saved from the snapshot above for each byte freed,
    from 0 to 1. bench.prefix replays several `alpha` and shows the best, as Marconi tunes it.
    """

    alpha: float

    def __call__(self, candidates: Iterable[Candidate]) -> Candidate | None:
        given = list(candidates)
        oldest = min((each.used_at for each in given), default=0)
        span = max((each.used_at - oldest for each in given), default=0) or 1
        most = max(map(per_byte, given), default=0) or 1

        def worth(each: Candidate) -> tuple[float, int]:
            recency = (each.used_at - oldest) / span
            return recency + self.alpha * per_byte(each) / most, each.number

        return min(given, key=worth, default=None)

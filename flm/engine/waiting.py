"""Requests without a lane, as they came. What the disk has of a prompt is read meanwhile.

Invariants, which `check` asserts:
  * A fetch is there for one who waits for it, and is closed with the last of them.
"""

from collections import deque
from collections.abc import Iterator

from flm.core.sequence import Phase, Sequence
from flm.prefix.cache import PrefixCache
from flm.prefix.fetch import Fetch


class Waiting:
    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._sequences: deque[Sequence] = deque()
        self._fetches: dict[str, Fetch] = {}  # by request id

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def ready(self) -> list[Sequence]:
        """Those that wait for a lane only."""
        return [sequence for sequence in self._sequences if self._has_landed(sequence)]

    def add(self, sequence: Sequence, tokens_per_s: float | None) -> None:
        """`tokens_per_s`: how fast prompts are read, for what the disk has may not be worth it."""
        request = sequence.request
        self._sequences.append(sequence)
        if not request.reuse:
            return
        self._cache.came(request.prompt)
        if fetch := self._cache.fetch(request.prompt, tokens_per_s):
            self._fetches[request.id] = fetch

    def take(self, sequence: Sequence) -> Fetch | None:
        """It is to have a lane; what the disk had, for the taker to close."""
        self._sequences.remove(sequence)
        return self._fetches.pop(sequence.request.id, None)

    def put_first(self, sequence: Sequence) -> None:
        self._sequences.appendleft(sequence)

    def remove(self, request_id: str) -> Sequence | None:
        found = next((one for one in self._sequences if one.request.id == request_id), None)
        if found:
            self._sequences.remove(found)
            if fetch := self._fetches.pop(request_id, None):
                fetch.close()
        return found

    def check(self) -> None:
        assert all(sequence.phase is Phase.WAITING for sequence in self._sequences)
        ids = {sequence.request.id for sequence in self._sequences}
        assert self._fetches.keys() <= ids, "a fetch that nobody waits for"
        users = list(self._fetches.values())
        assert all(fetch.users == users.count(fetch) for fetch in self._cache.fetches)

    def _has_landed(self, sequence: Sequence) -> bool:
        fetch = self._fetches.get(sequence.request.id)
        return fetch is None or fetch.done

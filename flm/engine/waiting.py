"""Requests without a lane, as they came. What the disk has of a prompt is read meanwhile, and what
its pictures are made into where nothing that is kept has them.

Invariants, which `check` asserts:
  * A fetch is there for one who waits for it, and is closed with the last of them; so is a picture.
"""

from collections import deque
from collections.abc import Iterator

from flm.core.request import Priority, Request
from flm.core.sequence import Phase, Sequence
from flm.prefix.cache import PrefixCache
from flm.prefix.fetch import Fetch
from flm.runner.encodings import Encodings, Needed


class Waiting:
    def __init__(self, cache: PrefixCache, encodings: Encodings | None = None) -> None:
        self._cache = cache
        self._encodings = encodings
        self._sequences: deque[Sequence] = deque()
        self._fetches: dict[str, Fetch] = {}  # by request id
        self._pictures: dict[str, Needed] = {}  # by request id

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
        request, fetch = sequence.request, None
        self._sequences.append(sequence)
        if request.reuse:
            self._cache.came(request.prompt)
            if fetch := self._cache.fetch(request.prompt, tokens_per_s):
                self._fetches[request.id] = fetch
        if self._encodings and request.prompt.pictures:
            self._encode(self._encodings, request, fetch)

    def take(self, sequence: Sequence) -> Fetch | None:
        """It is to have a lane; what the disk had, for the taker to close."""
        self._sequences.remove(sequence)
        if needed := self._pictures.pop(sequence.request.id, None):
            needed.close()
        return self._fetches.pop(sequence.request.id, None)

    def put_first(self, sequence: Sequence) -> None:
        self._sequences.appendleft(sequence)

    def remove(self, request_id: str) -> Sequence | None:
        found = next((one for one in self._sequences if one.request.id == request_id), None)
        if found:
            self._sequences.remove(found)
            if needed := self._pictures.pop(request_id, None):
                needed.close()
            if fetch := self._fetches.pop(request_id, None):
                fetch.close()
        return found

    def check(self) -> None:
        assert all(sequence.phase is Phase.WAITING for sequence in self._sequences)
        ids = {sequence.request.id for sequence in self._sequences}
        assert self._fetches.keys() <= ids, "a fetch that nobody waits for"
        assert self._pictures.keys() <= ids, "pictures that nobody waits for"
        if self._encodings:
            self._encodings.check()
        users = list(self._fetches.values())
        assert all(fetch.users == users.count(fetch) for fetch in self._cache.fetches)

    def _encode(self, encodings: Encodings, request: Request, fetch: Fetch | None) -> None:
        """What of the prompt is kept, or comes from the disk, needs no pictures any more."""
        kept = self._cache.look(request.prompt) if request.reuse else None
        start = kept.offset if kept and kept.tier == "host" else 0
        start = fetch.stored.offset if fetch else start
        further = (each for each in request.prompt.pictures if each.end > start)
        if needed := encodings.begin(further, urgent=request.priority is Priority.INTERACTIVE):
            self._pictures[request.id] = needed

    def _has_landed(self, sequence: Sequence) -> bool:
        request_id = sequence.request.id
        if (needed := self._pictures.get(request_id)) and not needed.done:
            return False
        fetch = self._fetches.get(request_id)
        return fetch is None or fetch.done

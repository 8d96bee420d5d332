"""A deeper start than memory has, on its way from the disk.

Room for it is taken before it is read, and what it hangs on stays until it is closed. It lands on
the engine's thread, as if the prompt had just been read up to there.
"""

from concurrent.futures import Future
from typing import TYPE_CHECKING

from flm.core.finding import Fate, FateKind
from flm.core.prompt import Boundary, Prompt
from flm.memory.snapshot import Snapshot
from flm.prefix.addition import Addition
from flm.prefix.disk.stored import BrokenEntry, Loaded, Stored
from flm.prefix.lease import Lease
from flm.prefix.trie import TOKEN_BYTES

if TYPE_CHECKING:
    from flm.prefix.cache import PrefixCache


class Fetch:
    """`users` are the requests that wait for it."""

    def __init__(
        self, cache: "PrefixCache", lease: Lease, stored: Stored, future: Future[Loaded], size: int
    ) -> None:
        self.lease = lease
        self.stored = stored
        self.users = 1
        self.bytes_reserved = size
        self._cache = cache
        self._future: Future[Loaded] | None = future  # None: what came was taken
        self._landed: bool | None = None

    @property
    def done(self) -> bool:
        return self._future is None or self._future.done()

    def serves(self, stored: Stored) -> bool:
        """Whether what comes is `stored`, or has it."""
        mine = self.stored
        deep_enough = mine.entry == stored.entry and mine.offset >= stored.offset
        return deep_enough and mine.logits_bytes >= stored.logits_bytes

    def land(self) -> bool:
        """Keep what came; False if it could not be read, or has no room after all."""
        if self._landed is None:
            self._release()
            loaded, self._future = self._loaded(), None
            self._landed = loaded is not None and self._keep(loaded)
        return self._landed

    def void(self) -> None:
        """It was cleared: what comes is not kept."""
        if self._landed is None:
            self._landed = False
            self._release()

    def _loaded(self) -> Loaded | None:
        cache, stored = self._cache, self.stored
        assert self._future
        try:
            return self._future.result()
        except Exception as error:  # whatever it is, the prompt can be read instead
            if not (isinstance(error, BrokenEntry) and error.gone):
                fate = Fate(FateKind.BROKEN, stored.offset, stored.kind)
                cache.ghosts.note(self.lease.prompt.domain, self._tokens, fate)
                cache.warn(f"Prefix cache: a prompt kept on disk cannot be used: {error}")
            return None

    def _keep(self, loaded: Loaded) -> bool:
        def save(start: int, end: int) -> Snapshot:
            assert loaded.start <= start <= end == loaded.end
            skip = start - loaded.start
            rows = dict(loaded.rows)
            if skip:  # kept meanwhile: a view would keep them alive, and nobody count them
                rows = {name: array[:, skip:].copy() for name, array in rows.items()}
            return Snapshot(start, end, rows, loaded.state)

        stored, cache, prompt = self.stored, self._cache, self.lease.prompt
        kept = self.lease.keep(Boundary(stored.offset, stored.kind), save, loaded.logits)
        slot = cache.trie.find(prompt.domain, self._tokens).node.slot
        if kept and slot and cache.disk and (loaded.logits is not None or slot.logits is None):
            slot.on_disk = cache.disk.store.holds(prompt.domain, self._tokens)
        return kept

    def close(self) -> None:
        """One of its users no longer needs it."""
        self.users -= 1
        if self.users:
            return
        self._cache.fetches.remove(self)
        if self._future:
            self._future.cancel()
        self._release()  # its bytes may come yet, for a moment
        self.lease.close()

    @property
    def _tokens(self) -> bytes:
        return self.lease.prompt.packed[: self.stored.offset * TOKEN_BYTES]

    def _release(self) -> None:
        self._cache.bytes_coming -= self.bytes_reserved
        self.bytes_reserved = 0


def begin_fetch(cache: "PrefixCache", prompt: Prompt, tokens_per_s: float | None) -> Fetch | None:
    """As PrefixCache.fetch."""
    if cache.disk is None:
        return None
    match = cache.trie.find(prompt.domain, prompt.packed)
    _, offset = cache.start_of(prompt, match)
    stored = cache.disk.store.find(prompt.domain, prompt.packed)
    if stored is None or stored.offset - offset < max(1, cache.gain_min):
        cache.prune(cache.trie.root(prompt.domain))  # a domain that was only asked about
        return None
    for fetch in cache.fetches:
        if fetch.serves(stored):
            fetch.users += 1
            return fetch
    addition = Addition(
        domain=prompt.domain,
        tokens=prompt.packed[: stored.offset * TOKEN_BYTES],
        kind=stored.kind,
        row_bytes=cache.row_bytes,
        state_bytes=cache.state_bytes,
        logits_bytes=stored.logits_bytes,
        apart=True,
    )
    match = cache.trie.find(addition.domain, addition.tokens)
    start, saved = addition.start(match), stored.offset - offset
    pays = not tokens_per_s or cache.disk.restore_pays(saved, stored, start, tokens_per_s)
    lease = cache.hold(prompt, match.node)
    if not pays or not cache.make_room(addition):
        lease.close()
        return None
    size = addition.bytes(cache.trie.find(addition.domain, addition.tokens))
    cache.bytes_coming += size
    fetch = Fetch(cache, lease, stored, cache.disk.fetch(stored, start), size)
    cache.fetches.append(fetch)
    return fetch

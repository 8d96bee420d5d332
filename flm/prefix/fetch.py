"""A deeper start than memory has, on its way from the disk.

Room for it is taken before it is read, and what it hangs on stays until it is closed. It lands on
the engine's thread, as if the prompt had just been read up to there.
"""

from concurrent.futures import Future
from typing import TYPE_CHECKING

from flm.core.finding import Fate, FateKind
from flm.core.prompt import Boundary
from flm.memory.snapshot import Snapshot
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
        self._future = future

    @property
    def done(self) -> bool:
        return self._future.done()

    def land(self) -> bool:
        """Keep what came; False if it could not be read, or has no room after all. Once."""
        cache = self._cache
        if not self.bytes_reserved:
            return True
        cache.bytes_coming -= self.bytes_reserved
        self.bytes_reserved = 0
        prompt, stored = self.lease.prompt, self.stored
        try:
            loaded = self._future.result()
        except (BrokenEntry, MemoryError, OSError) as error:
            tokens = prompt.packed[: stored.offset * TOKEN_BYTES]
            fate = Fate(FateKind.BROKEN, stored.offset, stored.kind)
            cache.ghosts.note(prompt.domain, tokens, fate)
            cache.warn(f"Prefix cache: a prompt kept on disk cannot be used: {error}")
            return False

        def save(start: int, end: int) -> Snapshot:
            assert loaded.start <= start <= end == loaded.end
            skip = start - loaded.start
            rows = {name: array[:, skip:] for name, array in loaded.rows.items()}
            return Snapshot(start, end, rows, loaded.state)

        logits = loaded.logits if stored.offset == len(prompt.tokens) else None
        return self.lease.keep(Boundary(stored.offset, stored.kind), save, logits)

    def close(self) -> None:
        """One of its users no longer needs it."""
        self.users -= 1
        if self.users:
            return
        self._cache.fetches.remove(self)
        self._cache.bytes_coming -= self.bytes_reserved  # its bytes may come yet, for a moment
        self.bytes_reserved = 0
        self.lease.close()

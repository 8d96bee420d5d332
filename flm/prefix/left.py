"""What models that are not loaded any more have left in memory: theirs again when they come back.

Nothing else outlives a model where there is no disk to keep it. Who comes back is known by its
identity, as on the disk, so no byte is ever another's.

Invariants:
  * All of it and what the loaded model keeps lie within that one's budget, at every instant.
  * What lacks room goes, that of the model that went first before all others'.
  * Nobody has a lease on any of it.
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING

from flm.prefix.ghosts import Ghosts
from flm.prefix.room import give_up_one

if TYPE_CHECKING:
    from flm.prefix.cache import PrefixCache


class Left:
    """For the thread that owns the device, or who loads and unloads while there is none."""

    def __init__(self) -> None:
        self._caches: dict[Hashable, PrefixCache] = {}  # whose model went first comes first
        self._here: tuple[Hashable, PrefixCache] | None = None

    @property
    def bytes(self) -> int:
        return sum(cache.bytes_kept for cache in list(self._caches.values()))

    @property
    def slot_count(self) -> int:
        return sum(cache.slot_count for cache in list(self._caches.values()))

    def fit(self, bytes_max: int, slots_max: int | None = None) -> None:
        """Before a model with that budget is loaded."""
        while self.bytes > bytes_max or (slots_max is not None and self.slot_count > slots_max):
            self.give_up()

    def come(self, identity: Hashable, fresh: "PrefixCache") -> "PrefixCache":
        """The cache of a model that is being loaded: what it left, or the `fresh` one, whose limits
        count. One with a disk leaves nothing here.
        """
        cache = fresh if fresh.disk else self._caches.pop(identity, fresh)
        cache.bytes_max, cache.slots_max = fresh.bytes_max, fresh.slots_max
        cache.ghosts = fresh.ghosts
        cache.left = self
        self._here = None if cache.disk else (identity, cache)
        cache.check()
        return cache

    def stay(self) -> None:
        """The model that was loaded is not any more."""
        if self._here is None:
            return
        (identity, cache), self._here = self._here, None
        cache.reap()
        if cache.slots and not cache.leases:
            cache.watch, cache.left, cache.ghosts = None, None, Ghosts(0)
            self._caches[identity] = cache

    def give_up(self) -> None:
        """One snapshot of the model that went first; there must be some."""
        identity, cache = next(iter(self._caches.items()))
        give_up_one(cache)
        if not cache.slots:
            del self._caches[identity]

    def clear(self, domain: str | None = None) -> int:
        """Of one domain or of all; how many snapshots that were."""
        count = sum(cache.clear(domain) for cache in self._caches.values())
        self._caches = {each: cache for each, cache in self._caches.items() if cache.slots}
        return count

    def check(self) -> None:
        for cache in self._caches.values():
            cache.check()
            assert cache.slots, "nothing is left"
            assert not cache.leases, "a lease on what is left"

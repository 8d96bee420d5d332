"""Pictures as a model sees them, by the bytes they were sent as: those of a conversation come again
with each of its turns, and are decoded and scaled once.

A loaded model has one, which goes with it. Invariant: what is kept takes at most `bytes_max`. Who
was asked for longest ago goes first, but nobody that a request has asked for goes for what it asks
for next: of a conversation with more pictures than are kept, the first of them stay.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock

from flm.core.picture import Picture

Key = tuple[bytes, Hashable]


@dataclass(slots=True)
class _Kept:
    picture: Picture
    asked: int  # when last


class Album:
    """For any thread. `made` counts pictures that were not here."""

    def __init__(self, bytes_max: int = 0) -> None:
        self.made = 0
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()  # who was asked for last is the last
        self._bytes = 0
        self._asked = 0
        self._lock = Lock()

    def visit(self) -> "Visit":
        """For one request, which begins now."""
        return Visit(self, self._asked)

    def find(self, key: Key) -> Picture | None:
        with self._lock:
            self._asked += 1
            kept = self._kept.get(key)
            if kept is None:
                return None
            kept.asked = self._asked
            self._kept.move_to_end(key)
            return kept.picture

    def keep(self, key: Key, picture: Picture, *, since: int) -> None:
        """Unless there is no room without those that were asked for `since`."""
        with self._lock:
            self.made += 1
            if key in self._kept:  # two threads were at it
                return
            free = self._bytes_max - self._bytes
            going = []
            for each, kept in self._kept.items():
                if free >= picture.bytes_held or kept.asked > since:
                    break
                free += kept.picture.bytes_held
                going.append(each)
            if free < picture.bytes_held:
                return
            for each in going:
                self._bytes -= self._kept.pop(each).picture.bytes_held
            self._kept[key] = _Kept(picture, self._asked)
            self._bytes += picture.bytes_held

    @property
    def bytes_kept(self) -> int:
        return self._bytes

    def check(self) -> None:
        with self._lock:
            assert self._bytes == sum(kept.picture.bytes_held for kept in self._kept.values())
            assert self._bytes <= self._bytes_max
            asked = [kept.asked for kept in self._kept.values()]
            assert asked == sorted(asked)


@dataclass(frozen=True, slots=True)
class Visit:
    """What one request asks an album."""

    album: Album
    since: int

    def seen(self, data: bytes, how: Hashable, make: Callable[[], Picture]) -> Picture:
        """Of a file: what `make` gives, now or before. `how`: all else that decides it."""
        key = hashlib.sha256(data).digest(), how
        found = self.album.find(key)
        if found is None:
            found = make()
            self.album.keep(key, found, since=self.since)
        return found


KEEPS_NOTHING = Album()

"""The disk's share of the prefix cache: finds in memory, reads and writes files.

    stored = store.find(domain, tokens)     # any thread, no I/O
    loaded = store.read(stored, start)      # raises BrokenEntry, once
    store.write(Unwritten(...))             # what the disk lacks of it

What `find` returns was written whole, synced, and put into the index after that. A file that failed
is out of the index before anybody learns of it. A write holds `_writing` for long; the other locks
are those of the holdings, so that nobody waits for a write but the next.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from threading import Lock

import numpy as np

from flm.core.sizes import mib
from flm.devices.device import Array
from flm.memory.arrays import empty
from flm.memory.layout import MemoryLayout
from flm.prefix.disk.draft import Draft, frame_bytes
from flm.prefix.disk.folder import Folder
from flm.prefix.disk.frames import HEAD, WINDOW_TOKENS, Frame, RowsFormat, Torn
from flm.prefix.disk.holdings import Holdings
from flm.prefix.disk.identity import Identity
from flm.prefix.disk.stored import BrokenEntry, DiskUnusable, Loaded, OnDisk, Stored, Unwritten
from flm.prefix.disk.tree import Entry, Segment
from flm.prefix.trie import TOKEN_BYTES

DISK_FREE_MIN_BYTES = 2 * 2**30  # left to others on the file system
Pace = Callable[[int], None]  # told of every few bytes written; what it raises ends the write


class DiskStore:
    """Raises DiskTaken where another process keeps, DiskUnusable where nothing can be kept."""

    def __init__(
        self,
        root: Path,
        identity: Identity,
        layout: MemoryLayout,
        *,
        bytes_max: int,
        free_min_bytes: int = DISK_FREE_MIN_BYTES,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        window: int = WINDOW_TOKENS,
    ) -> None:
        self.clock = clock  # seconds since 1970
        self._layout = layout
        self._state_bytes = frame_bytes(layout.state_bytes)
        self._form = RowsFormat(layout, window)
        self._writing = Lock()
        try:
            self._holdings = Holdings(
                Folder(root, identity),
                self._form,
                bytes_max=bytes_max,
                free_min_bytes=free_min_bytes,
                warn=warn,
                clock=clock,
            )
        except (OSError, sqlite3.Error) as error:
            raise DiskUnusable(
                f"{root} cannot be used: {error}",
                fix="choose another --prefix-disk-path, or turn it off with --prefix-disk-mb 0",
            ) from error
        self._tree, self._lock = self._holdings.tree, self._holdings.lock
        self._numbers = count(1 + max((*self._tree.segments, *self._tree.entries), default=0))

    # Any thread, no I/O.

    @property
    def bytes_kept(self) -> int:
        """On the disk, the index and what is being written included."""
        return self._holdings.bytes_kept

    @property
    def bytes_max(self) -> int:
        return self._holdings.bytes_max

    @property
    def snapshot_count(self) -> int:
        return len(self._tree.entries)

    def find(self, domain: str, tokens: bytes) -> Stored | None:
        """The deepest place that a prompt of `tokens` can start from.

        With state only snapshots are; without, every row that leads to one. What a pass reads at
        least is left to compute, unless all are kept and the logits of the last. A prompt that one
        short pass reads starts from nothing.
        """
        length = len(tokens) // TOKEN_BYTES
        if length < self._layout.first_min:
            return None
        with self._lock:
            way = self._tree.way(domain, tokens)
            if not way:
                return None
            whole = way[-1][0].entries.get(length) if way[-1][1] == length else None
            if whole and whole.logits_bytes:
                return self._stored(way, whole, length, whole=True)
            furthest = max(0, length - self._layout.read_min)
            for segment, stop in reversed(way):
                stop = min(stop, furthest)
                if self._layout.state_bytes:
                    offset = max((at for at in segment.entries if at <= stop), default=0)
                else:
                    offset = min(stop, self._tree.reach(segment))
                if offset > segment.start:
                    return self._stored(way, self._tree.through(segment, offset), offset)
        return None

    def holds(self, domain: str, tokens: bytes) -> bool:
        """Whether there is a snapshot exactly there. Asking counts as using it."""
        with self._lock:
            entry = self._entry(domain, tokens)
            if entry:
                self._holdings.use(entry)
            return entry is not None

    def number_of(self, domain: str, tokens: bytes) -> int | None:
        """Of the snapshot exactly there. Asking is not using it."""
        with self._lock:
            entry = self._entry(domain, tokens)
            return entry.number if entry else None

    def pin(self, stored: Stored) -> bool:
        """Keep it until `unpin`; False: it is gone already."""
        with self._lock:
            entry = self._tree.entries.get(stored.entry)
            if entry:
                entry.pins += 1
                self._holdings.use(entry)
            return entry is not None

    def unpin(self, stored: Stored) -> None:
        with self._lock:
            if entry := self._tree.entries.get(stored.entry):
                entry.pins -= 1

    def overview(self) -> list[OnDisk]:
        with self._lock:
            entries = list(self._tree.entries.values())
            return [
                OnDisk(
                    number=entry.number,
                    domain=entry.segment.domain,
                    offset=entry.offset,
                    kind=entry.kind,
                    used_at=entry.used_at,
                    own_bytes=entry.state_bytes + entry.logits_bytes,
                    above=_above(entry),
                )
                for entry in entries
            ]

    # Threads that may wait for the disk.

    def read(self, stored: Stored, start: int) -> Loaded:
        """Rows [start, stored.offset), if any, the state and the logits there.

        Raises BrokenEntry, MemoryError.
        """
        if not self.pin(stored):
            raise BrokenEntry(str(stored.entry), "given up", gone=True)
        try:
            return self._read(stored, start)
        finally:
            self.unpin(stored)

    def write(self, item: Unwritten, pace: Pace = lambda count: None) -> int:
        """What the disk lacks of it; how many bytes that were: 0 if it was there, or has no room,
        or its pieces don't reach back to what is there, or the disk fails (which is said once)."""
        with self._writing:
            try:
                return self._write(item, pace)
            except (OSError, sqlite3.Error) as error:
                self._holdings.say_failed(error)
                return 0

    def remove(self, domain: str, tokens: bytes) -> None:
        """The snapshot exactly there, if there is one."""
        with self._lock:
            entry = self._entry(domain, tokens)
        try:
            if entry:
                self._holdings.remove(entry)
        except (OSError, sqlite3.Error) as error:
            self._holdings.say_failed(error)

    def clear(self, domain: str | None = None) -> int:
        """Remove all snapshots of a domain, or of all; how many. A disk that fails is told once."""
        try:
            return self._holdings.clear(domain)
        except (OSError, sqlite3.Error) as error:
            self._holdings.say_failed(error)
            return 0

    def check(self) -> None:
        """While nothing is being written."""
        self._holdings.check()

    def close(self) -> None:
        with self._writing:
            self._holdings.close()

    # Under `_lock`.

    def _stored(
        self, way: list[tuple[Segment, int]], entry: Entry, offset: int, *, whole: bool = False
    ) -> Stored:
        return Stored(
            offset=offset,
            kind=entry.kind,
            entry=entry.number,
            parts=self._tree.parts(way, offset),
            row_bytes=self._layout.row_bytes,
            state_bytes=entry.state_bytes,
            logits_bytes=entry.logits_bytes if whole else 0,
        )

    def _entry(self, domain: str, tokens: bytes) -> Entry | None:
        length = len(tokens) // TOKEN_BYTES
        way = self._tree.way(domain, tokens)
        return way[-1][0].entries.get(length) if way and way[-1][1] == length else None

    # Writing.

    def _write(self, item: Unwritten, pace: Pace) -> int:
        draft: Draft | None = None
        try:
            draft = self._plan(item)
            if draft is None or not self._reserve(draft):
                return 0
            for count in draft.write():
                pace(count)
            return self._holdings.land(draft)
        finally:
            self._holdings.settle(draft)

    def _plan(self, item: Unwritten) -> Draft | None:
        """None: there is nothing to write. What it hangs on stays until it is settled."""
        offset = len(item.tokens) // TOKEN_BYTES
        logits_bytes = 0 if item.logits is None else frame_bytes(item.logits.nbytes)
        assert item.logits is None or item.logits.dtype == np.float32
        assert all(one.end == other.start for one, other in pairwise(item.pieces)), "a gap"
        with self._lock:
            if old := self._entry(item.domain, item.tokens):
                self._holdings.use(old)
                if not logits_bytes or old.logits_bytes:
                    return None
                old.pins += 1
                new = replace(old, logits_bytes=logits_bytes)
                return Draft(item, self._form, self._holdings.folder, None, new, old)
            way = self._tree.way(item.domain, item.tokens)
            hang, start = way[-1] if way else (self._tree.root(item.domain), 0)
            self._tree.resting = hang, start
        segment = hang
        if start < offset:
            if not item.pieces or item.pieces[0].start > start or item.pieces[-1].end < offset:
                return None
            tokens = item.tokens[start * TOKEN_BYTES :]
            segment = Segment(next(self._numbers), item.domain, hang, start, offset, tokens)
        entry = Entry(next(self._numbers), segment, offset, item.kind, self._holdings.clock())
        entry.state_bytes, entry.logits_bytes = self._state_bytes, logits_bytes
        new_segment = segment if segment is not hang else None
        return Draft(item, self._form, self._holdings.folder, new_segment, entry)

    def _reserve(self, draft: Draft) -> bool:
        """Make room and take it; False, and nothing is given up, if it cannot fit."""
        with self._holdings.folder.sole_writer():
            if not self._holdings.make_room(draft.bytes + draft.bytes_indexed):
                self._holdings.say(
                    "large",
                    f"Prefix cache: a snapshot of {draft.entry.offset} tokens "
                    f"({mib(draft.bytes)}) has no room on the disk within --prefix-disk-mb "
                    f"({mib(self._holdings.bytes_max)}); it is not kept there",
                )
                return False
            self._holdings.reserved = draft.bytes
            draft.make()
        return True

    # Reading.

    def _read(self, stored: Stored, start: int) -> Loaded:
        assert 0 <= start <= stored.offset
        rows, state = empty(self._layout, stored.offset - start)
        for part in stored.parts:
            wanted = range(max(start, part.start), part.stop)
            if wanted:
                low, high = wanted.start - start, wanted.stop - start
                into = {name: array[:, low:high] for name, array in rows.items()}
                extent = range(part.start, part.end)
                with self._reading(part.segment, ".rows") as file:
                    self._form.read(file, part.segment, extent, wanted, into)
        frame = Frame(stored.entry, 0, stored.offset)
        if state:
            with self._reading(stored.entry, ".state") as file:
                frame.read(file, 0, list(state.values()))
        logits: Array | None = None
        if stored.logits_bytes:
            logits = np.empty((stored.logits_bytes - HEAD.size) // 4, np.float32)
            with self._reading(stored.entry, ".logits") as file:
                frame.read(file, 0, [logits])
        return Loaded(start, stored.offset, rows, state, logits)

    @contextmanager
    def _reading(self, number: int, suffix: str) -> Iterator[int]:
        """Of a file whose failure is its last."""
        name = f"{number}{suffix}"
        try:
            file = os.open(self._holdings.folder.path / name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                yield file
            finally:
                os.close(file)
        except (OSError, Torn) as error:
            gone = not self._holdings.quarantine(number, suffix)
            if not gone:
                self._holdings.warn(
                    f"Prefix cache: {self._holdings.folder.path / name} is broken ({error}); it is "
                    "set aside, and what it was for is read anew"
                )
            raise BrokenEntry(name, str(error), gone=gone) from error


def _above(entry: Entry) -> int | None:
    """The next snapshot towards the start of the prompt."""
    limit = entry.offset - 1
    for segment in entry.segment.path():
        if offsets := [offset for offset in segment.entries if offset <= limit]:
            return segment.entries[max(offsets)].number
        limit = segment.start
    return None

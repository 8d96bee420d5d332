"""What one folder holds: the tree, the index and the files, which change together.

Invariants (the tree has its own), which `check` asserts:
  * `bytes_kept <= bytes_max` at every instant, and so is what all identities keep below the root.
  * Files and rows of the index are those of the tree, whenever `changing` is free.

`changing` is held while index and files change, and `lock`, inside of it, while the tree does:
never during I/O.
"""

import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from threading import Lock, RLock

from flm.prefix.disk.draft import Draft
from flm.prefix.disk.folder import Folder, Other, bytes_below
from flm.prefix.disk.frames import RowsFormat
from flm.prefix.disk.index import Change
from flm.prefix.disk.opening import files_of, open_folder
from flm.prefix.disk.room import bytes_held, order
from flm.prefix.disk.tree import Entry, Segment


class Holdings:
    """Owns `folder`, also when opening it fails. Raises OSError, sqlite3.Error."""

    def __init__(
        self,
        folder: Folder,
        form: RowsFormat,
        *,
        bytes_max: int,
        free_min_bytes: int,
        warn: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.folder = folder
        self.form = form
        self.bytes_max = bytes_max
        self.free_min_bytes = free_min_bytes
        self.clock = clock
        self.warn = warn
        self.changing, self.lock = RLock(), Lock()
        self.reserved = 0  # bytes of files that are being written
        self._said: set[str] = set()
        self._used: dict[int, float] = {}  # not in the index yet
        with ExitStack() as undo:
            undo.callback(folder.close)
            self.index, self.tree = open_folder(folder, form, warn)
            undo.callback(self.index.close)
            self._latest = max((e.used_at for e in self.tree.entries.values()), default=0.0)
            self.weigh()
            with folder.sole_writer():
                self.make_room(0)
            undo.pop_all()

    @property
    def bytes_kept(self) -> int:
        """On the disk, the index and what is being written included."""
        return self.tree.bytes + self.reserved + self._beside

    # Under `lock`.

    def use(self, entry: Entry) -> None:
        self._latest = entry.used_at = max(self.clock(), self._latest + 1e-6)
        self._used[entry.number] = entry.used_at

    def _take(self, entry: Entry, change: Change) -> None:
        """Out of the tree, with the rows that led to it alone."""
        self.tree.remove_entry(entry)
        change.entries_gone.append(entry.number)
        self._prune(entry.segment, change)

    def _prune(self, segment: Segment, change: Change) -> None:
        gone, cut = self.tree.prune(segment)
        change.segments_gone += [each.number for each in gone]
        change.segments += cut

    def _drop(self, segment: Segment, change: Change) -> None:
        """Out of the tree, with all that hangs on it."""
        for each in reversed(list(segment.below())):
            for entry in list(each.entries.values()):
                self.tree.remove_entry(entry)
                change.entries_gone.append(entry.number)
            if each.parent:
                self.tree.remove_segment(each)
                change.segments_gone.append(each.number)
        if segment.parent:
            self._prune(segment.parent, change)
        else:
            del self.tree.roots[segment.domain]

    # Under `changing`, or taking it.

    def land(self, draft: Draft) -> int:
        """What was written, unless what it hangs on is gone by now: how many bytes."""
        with self.changing:
            with self.lock:
                if not self._stands(draft):
                    return 0
            draft.land()
            segments = [draft.segment] if draft.segment else []
            self.index.apply(Change(segments=segments, entries=[draft.entry]))
            draft.landed = True
            with self.lock:
                self.reserved = 0
                if draft.segment:
                    self.tree.add_segment(draft.segment)
                if draft.old:
                    self.tree.bytes += draft.bytes
                    draft.old.logits_bytes = draft.entry.logits_bytes
                else:
                    self.tree.add_entry(draft.entry)
                self.use(draft.old or draft.entry)
            self.weigh()
            return draft.bytes

    def settle(self, draft: Draft | None) -> None:
        """Nothing rests any more, and what has not landed goes."""
        with self.changing:
            change = Change()
            with self.lock:
                resting, self.tree.resting = self.tree.resting, None
                if draft and draft.old:
                    draft.old.pins -= 1
                if resting and (resting[0].number in self.tree.segments or not resting[0].parent):
                    self._prune(resting[0], change)
            if draft:
                draft.drop()
            self.reserved = 0
            if change.segments or change.segments_gone:
                self.apply(change)

    def _stands(self, draft: Draft) -> bool:
        if draft.old:
            return self.tree.entries.get(draft.old.number) is draft.old
        assert self.tree.resting
        hang, _ = self.tree.resting
        place = self.tree.segments.get(hang.number) if hang.parent else None
        return (place or self.tree.roots.get(hang.domain)) is hang

    def make_room(self, size: int) -> bool:
        """Give up what goes first until `size` more bytes fit; nothing if they cannot."""
        with self.changing:
            self.weigh()
            others = self.folder.others()
            lacking = self._lacking(size, others)
            if lacking <= 0:
                return True
            free = [other for other in others if self.folder.is_free(other)]
            with self.lock:
                own = self.tree.bytes - bytes_held(self.tree)
            aside = self.folder.quarantine_bytes()
            if size and lacking > aside + own + sum(other.bytes for other in free):
                return False
            self.folder.clear_quarantine()
            lacking -= aside
            for other in free:
                if lacking > 0 and self.folder.remove(other):
                    lacking -= other.bytes
            if lacking > 0:
                self._give_up(lacking)
            self.weigh()
            return self._lacking(size, self.folder.others()) <= 0

    def _lacking(self, size: int, others: Iterable[Other]) -> int:
        """How many bytes must go before `size` more fit."""
        over = self.bytes_kept + sum(other.bytes for other in others) + size - self.bytes_max
        return max(over, size + self.free_min_bytes - self.folder.free_bytes() if size else 0)

    def _give_up(self, size: int) -> None:
        change = Change()
        with self.lock:
            until = self.tree.bytes - size
            for entry in order(self.tree.entries.values(), self.clock()):
                if self.tree.bytes <= until:
                    break
                self._take(entry, change)
        self.apply(change)

    def apply(self, change: Change) -> None:
        """What left the tree leaves the disk: files first, for they are what takes room."""
        for number in change.segments_gone:
            self.folder.file(number, ".rows").unlink(missing_ok=True)
        for number in change.entries_gone:
            for suffix in (".state", ".logits"):
                self.folder.file(number, suffix).unlink(missing_ok=True)
        with self.lock:
            change.used, self._used = self._used, {}
            cut = {segment.number: segment for segment in change.segments}
            cut = {number: each for number, each in cut.items() if number in self.tree.segments}
        change.segments = list(cut.values())
        self.index.apply(change)
        for segment in change.segments:
            size = self.form.bytes(segment.end - segment.start)
            os.truncate(self.folder.file(segment.number, ".rows"), size)

    def quarantine(self, number: int, suffix: str) -> bool:
        """Set the file aside and drop all that needs it. False: it was given up before."""
        with self.changing:
            change = Change()
            with self.lock:
                segment = self.tree.segments.get(number) if suffix == ".rows" else None
                entry = self.tree.entries.get(number) if suffix != ".rows" else None
                if segment:
                    self._drop(segment, change)
                elif entry:
                    self._take(entry, change)
                else:
                    return False
            try:
                self.folder.quarantine(f"{number}{suffix}")
                self.apply(change)
                self.weigh()
            except (OSError, sqlite3.Error) as error:
                self.say_failed(error)
            return True

    def remove(self, entry: Entry) -> None:
        with self.changing:
            change = Change()
            with self.lock:
                if entry.number not in self.tree.entries:
                    return
                self._take(entry, change)
            self.apply(change)

    def clear(self, domain: str | None = None) -> int:
        """Remove all snapshots of a domain, or of all; how many."""
        with self.changing:
            with self.lock:
                roots = [each for each in self.tree.roots.values() if domain in (None, each.domain)]
                change = Change()
                for root in roots:
                    self._drop(root, change)
            self.apply(change)
            self.folder.clear_quarantine()
            self.weigh()
        return len(change.entries_gone)

    def weigh(self) -> None:
        """What lies there beside the files of snapshots."""
        self._beside = (
            self.folder.fixed_bytes() + self.folder.quarantine_bytes() + self.index.bytes()
        )

    def say_failed(self, error: Exception) -> None:
        self.say("failed", f"Prefix cache: cannot write to {self.folder.path}: {error}")

    def say(self, key: str, line: str) -> None:
        """Once."""
        if key not in self._said:
            self._said.add(key)
            self.warn(line)

    def check(self) -> None:
        """While nothing is being written."""
        with self.changing, self.lock:
            self.tree.check()
            assert self.folder.files() == files_of(self.tree)
            segments, entries = self.index.numbers()
            assert segments == set(self.tree.segments)
            assert entries == set(self.tree.entries)
            assert {row.number: row.end for row in self.index.segments()} == {
                segment.number: segment.end for segment in self.tree.segments.values()
            }
            assert self.bytes_kept == bytes_below(self.folder.path)
            assert self.bytes_kept <= self.bytes_max

    def close(self) -> None:
        with self.changing:
            try:
                self.apply(Change())
            finally:
                self.index.close()
                self.folder.close()

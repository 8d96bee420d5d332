"""The index: which segments and snapshots there are, in sqlite. A file without a row is nothing.

Every row carries a checksum: wrong token ids would lead another prompt to these rows.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from flm.core.prompt import BoundaryKind
from flm.prefix.disk.frames import BLOB_VERSION
from flm.prefix.disk.tree import Entry, Segment

NAME = "index.sqlite"
NAMES = (NAME, f"{NAME}-wal", f"{NAME}-shm")
PAGE_BYTES = 4096
_TABLES = """
CREATE TABLE IF NOT EXISTS segments (number INTEGER PRIMARY KEY, domain TEXT, parent INTEGER,
    start INTEGER, end INTEGER, tokens BLOB, checksum INTEGER);
CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, segment INTEGER, offset INTEGER,
    kind TEXT, state_bytes INTEGER, logits_bytes INTEGER, checksum INTEGER, used_at REAL);
"""


@dataclass(frozen=True, slots=True)
class SegmentRow:
    number: int
    domain: str
    parent: int  # 0: none
    start: int
    end: int
    tokens: bytes


@dataclass(frozen=True, slots=True)
class EntryRow:
    number: int
    segment: int
    offset: int
    kind: BoundaryKind
    state_bytes: int
    logits_bytes: int
    used_at: float


@dataclass(slots=True)
class Change:
    """One transaction."""

    segments: list[Segment] = field(default_factory=list)  # new or changed
    entries: list[Entry] = field(default_factory=list)
    segments_gone: list[int] = field(default_factory=list)
    entries_gone: list[int] = field(default_factory=list)
    used: Mapping[int, float] = field(default_factory=dict)  # by number of the snapshot


def bytes_added(tokens: int) -> int:
    """The most that a transaction lets the index grow, log included."""
    return 2 * (4 * tokens + 12 * PAGE_BYTES)


class Index:
    """Used by one thread at a time. Raises sqlite3.Error."""

    def __init__(self, folder: Path) -> None:
        path = folder / NAME
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))  # -wal follows
        self._paths = [folder / name for name in NAMES]
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._open()
        except sqlite3.Error:
            self._db.close()
            raise

    def segments(self) -> Iterator[SegmentRow]:
        """Parents first; rows that were changed by others are left out."""
        columns = "number, domain, parent, start, end, tokens, checksum"
        for *values, checksum in self._db.execute(f"SELECT {columns} FROM segments ORDER BY 1"):
            if _checksum(values) == checksum:
                yield SegmentRow(*values)

    def entries(self) -> Iterator[EntryRow]:
        columns = "number, segment, offset, kind, state_bytes, logits_bytes, checksum, used_at"
        for *values, checksum, used_at in self._db.execute(f"SELECT {columns} FROM entries"):
            if _checksum(values) == checksum:
                number, segment, offset, kind, state_bytes, logits_bytes = values
                kind, used_at = BoundaryKind(kind), float(used_at)
                yield EntryRow(number, segment, offset, kind, state_bytes, logits_bytes, used_at)

    def numbers(self) -> tuple[set[int], set[int]]:
        """Of all segments and all snapshots, damaged rows included."""
        tables = ("segments", "entries")
        segments, entries = (
            {number for (number,) in self._db.execute(f"SELECT number FROM {table}")}
            for table in tables
        )
        return segments, entries

    def apply(self, change: Change) -> None:
        """All of it or nothing; on the disk when this returns."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._delete("segments", change.segments_gone)
            self._delete("entries", change.entries_gone)
            self._insert("segments", [_segment_values(segment) for segment in change.segments])
            self._insert("entries", [_entry_values(entry) for entry in change.entries])
            used = [(used_at, number) for number, used_at in change.used.items()]
            self._db.executemany("UPDATE entries SET used_at = ? WHERE number = ?", used)
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        with suppress(sqlite3.OperationalError):  # it is committed; the log may wait
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self._paths if path.exists())

    def close(self) -> None:
        self._db.close()

    def _open(self) -> None:
        run = self._db.execute
        run(f"PRAGMA page_size = {PAGE_BYTES}")
        run("PRAGMA auto_vacuum = FULL")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        run("PRAGMA secure_delete = ON")  # token ids are conversations
        (version,) = run("PRAGMA user_version").fetchone()
        if version not in (0, BLOB_VERSION):
            raise sqlite3.DatabaseError(f"version {version}")
        self._db.executescript(_TABLES)
        run(f"PRAGMA user_version = {BLOB_VERSION}")
        if run("PRAGMA quick_check").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("damaged")

    def _delete(self, table: str, numbers: Iterable[int]) -> None:
        statement = f"DELETE FROM {table} WHERE number = ?"
        self._db.executemany(statement, [(number,) for number in numbers])

    def _insert(self, table: str, rows: list[list[Any]]) -> None:
        if rows:
            holes = ", ".join("?" * len(rows[0]))
            self._db.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({holes})", rows)


def _segment_values(segment: Segment) -> list[Any]:
    parent = segment.parent.number if segment.parent else 0
    values = [segment.number, segment.domain, parent, segment.start, segment.end, segment.tokens]
    return [*values, _checksum(values)]


def _entry_values(entry: Entry) -> list[Any]:
    values = [entry.number, entry.segment.number, entry.offset, entry.kind.value]
    values += [entry.state_bytes, entry.logits_bytes]
    return [*values, _checksum(values), entry.used_at]


def _checksum(values: list[Any]) -> int:
    return crc32(repr(values).encode())

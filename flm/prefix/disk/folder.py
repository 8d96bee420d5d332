"""One folder an identity, one owner a folder: `<root>/<digest>/`, readable by its user alone.

All folders below the root share one budget. Whoever is about to write holds the root's lock while
it adds up sizes and makes its files, which are as long as they will be from the start.
"""

import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from flm.prefix.disk.frames import sync_folder
from flm.prefix.disk.identity import Identity
from flm.prefix.disk.index import NAMES
from flm.prefix.disk.stored import DiskTaken

LOCK, IDENTITY, QUARANTINE = "lock", "identity.json", "quarantine"
QUARANTINE_FILES_MAX = 8
SOLE_WAIT_S, _PAUSE_S = 2.0, 0.02
NEW = ".new"  # files that are being written
SUFFIXES = (".rows", ".state", ".logits")
_DIGEST = re.compile("[0-9a-f]{32}")  # whatever else lies below the root is not ours


@dataclass(frozen=True, slots=True)
class Other:
    """The folder of another identity."""

    path: Path
    bytes: int
    used_at: float


class Folder:
    """Raises DiskTaken, OSError."""

    def __init__(self, root: Path, identity: Identity) -> None:
        self.root = root
        self.path = root / identity.digest
        _make_folder(root)
        self._root_lock = _open_lock(root / LOCK)
        try:
            with self.sole_writer():
                _make_folder(self.path)
                self._lock = _open_lock(self.path / LOCK)
                try:
                    self._own(identity)
                except BaseException:
                    os.close(self._lock)
                    raise
        except BaseException:
            os.close(self._root_lock)
            raise

    @contextmanager
    def sole_writer(self) -> Iterator[None]:
        """While nobody else below the root is making room. Waits for that, but not for ever: who
        does it may be stopped. Raises TimeoutError.
        """
        until = time.monotonic() + SOLE_WAIT_S
        while not _taken(self._root_lock):
            if time.monotonic() >= until:
                raise TimeoutError("another flm is making room there, and does not get done")
            time.sleep(_PAUSE_S)
        try:
            yield
        finally:
            fcntl.flock(self._root_lock, fcntl.LOCK_UN)

    def file(self, number: int, suffix: str) -> Path:
        return self.path / f"{number}{suffix}"

    def files(self) -> dict[str, int]:
        """Sizes of what snapshots consist of, by name, and of what was being written."""
        return {
            entry.name: entry.stat().st_size
            for entry in os.scandir(self.path)
            if entry.name.endswith((*SUFFIXES, NEW))
        }

    def others(self) -> list[Other]:
        """The longest unused first."""
        others = []
        for path in self.root.iterdir():
            if _DIGEST.fullmatch(path.name) and path != self.path:
                used_at = 0.0
                with suppress(FileNotFoundError):
                    used_at = (path / LOCK).stat().st_mtime
                others.append(Other(path, bytes_below(path), used_at))
        return sorted(others, key=lambda other: (other.used_at, other.path))

    def is_free(self, other: Other) -> bool:
        return _under_lock(other.path / LOCK, lambda: None)

    def remove(self, other: Other) -> bool:
        """False: somebody owns it. Only for the sole writer, so that nobody is opening it."""
        return _under_lock(other.path / LOCK, lambda: shutil.rmtree(other.path))

    def quarantine(self, name: str) -> None:
        """Set a broken file aside, for people to look at; the oldest make way."""
        aside = self.path / QUARANTINE
        _make_folder(aside)
        with suppress(FileNotFoundError):
            os.replace(self.path / name, aside / name)
            os.utime(aside / name)
        for path in self._quarantined()[:-QUARANTINE_FILES_MAX]:
            path.unlink()

    def quarantine_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._quarantined())

    def clear_quarantine(self) -> None:
        for path in self._quarantined():
            path.unlink(missing_ok=True)

    def fixed_bytes(self) -> int:
        return sum((self.path / name).stat().st_size for name in (LOCK, IDENTITY))

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.path).free

    def empty(self) -> None:
        """Remove all that we may have written."""
        self.clear_quarantine()
        for name in (*NAMES, *self.files()):
            (self.path / name).unlink(missing_ok=True)

    def touch(self) -> None:
        """It was used now: others look at this when they lack room."""
        os.utime(self._lock)

    def close(self) -> None:
        with suppress(OSError):
            self.touch()
        os.close(self._lock)
        os.close(self._root_lock)

    def _own(self, identity: Identity) -> None:
        if not _taken(self._lock):
            raise DiskTaken(
                f"another flm keeps its prefix cache in {self.path}",
                fix="stop it, or give this one another --prefix-disk-path",
            )
        self.touch()
        place = self.path / IDENTITY
        with suppress(FileNotFoundError):
            if place.read_text(encoding="utf-8", errors="replace") == identity.json:
                return
        self.empty()  # of whatever it is: none of it is ours to restore
        new = self.path / f"{IDENTITY}{NEW}"
        new.unlink(missing_ok=True)
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            stream.write(identity.json)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(place)
        sync_folder(self.path)

    def _quarantined(self) -> list[Path]:
        """The oldest first."""
        aside = self.path / QUARANTINE
        paths = list(aside.iterdir()) if aside.is_dir() else []
        return sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name))


def bytes_below(folder: Path) -> int:
    total = 0
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            total += bytes_below(Path(entry.path))
        else:
            with suppress(FileNotFoundError):
                total += entry.stat(follow_symlinks=False).st_size
    return total


def _make_folder(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(PermissionError):  # a root that is not ours: what lies below it is
        path.chmod(0o700)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _under_lock(path: Path, act: Callable[[], None]) -> bool:
    """False: another holds it, and nothing was done."""
    lock = _open_lock(path)
    try:
        if taken := _taken(lock):
            act()
    finally:
        os.close(lock)
    return taken


def _taken(lock: int) -> bool:
    """Whether it is ours now, and not another's. It is free again once its owner ends, anyhow."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""Room, hashes and one writer at a time: what stands between a download and a whole file."""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import IO

from flm import console
from flm.errors import BadSettings, FlmError, NoRoom

# (file, bytes so far, bytes in all)
Progress = Callable[[str, int, int], None]

BLOCK_BYTES = 2**20
ROOM_SPARE_BYTES = 64 * 2**20  # left to others on the same disk
LOOK_INTERVAL_S = 0.25
ELSEWHERE = "free some space, or keep models elsewhere: FLM_MODEL_PATH=/another/folder"


def size_text(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def require_room(folder: Path, bytes_needed: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < bytes_needed + ROOM_SPARE_BYTES:
        raise NoRoom(
            f"{what} needs {size_text(bytes_needed)}, and {folder} has {size_text(free)} free.",
            fix=ELSEWHERE,
        )


def disk_error(error: OSError, folder: Path) -> FlmError:
    """What an OSError of writing below `folder` means to its owner."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoRoom(f"The disk is full: {folder} takes no more.", fix=ELSEWHERE)
    return BadSettings(
        f"{folder} cannot be written: {error.strerror or error}",
        fix="choose a folder of your own: FLM_MODEL_PATH=/another/folder",
        param="model-path",
    )


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_hashed(source: IO[bytes], target: Path) -> str:
    """Copy to `target`, streaming; the sha256 of what went through."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        while block := source.read(BLOCK_BYTES):
            out.write(block)
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Waits until no other process is pulling into `folder`."""
    import fcntl

    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.say(f"Another flm is pulling into {folder}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def growth(path: Path, file: str, total: int, progress: Progress) -> Iterator[None]:
    """Reports the most that lay at `path` while somebody else's code fills it.

    A total of 0 is unknown.
    """
    done = Event()

    def look() -> None:
        most = 0
        while not done.wait(LOOK_INTERVAL_S):
            most = max(most, bytes_under(path))  # less while a file is being moved
            progress(file, min(most, total) if total else most, total)

    watcher = Thread(target=look, name="download-growth", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    if total:
        progress(file, total, total)


def bytes_under(path: Path) -> int:
    """Size of a file, or of all files below a folder; 0 if there is none. What is moved or removed
    meanwhile, files or folders, counts for nothing.
    """
    below = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    total = 0
    for file in [path] if path.is_file() else below:
        try:
            total += file.stat().st_size
        except OSError:
            continue
    return total

"""A disk that fills up while a lane is parked on it: the person waits, and nobody loses a token."""

import errno
import os
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import IO, Any

import pytest

from flm.core.event import Finished
from flm.memory.layout import MemoryLayout
from flm.memory.parked import Parked
from tests.engine.rig import Rig, layouts, request_of
from tests.engine.test_parking import (
    PROMPT,
    ROOMY,
    SHORT,
    agent,
    generated,
    parked,
)


class Filling:
    """A file on a disk that takes so many bytes more. It buffers, as files do."""

    def __init__(self, file: IO[bytes], room: int) -> None:
        self._file, self._room, self._waits = file, room, 0

    def write(self, data: memoryview) -> int:
        self._waits += data.nbytes
        return self._file.write(data)

    def flush(self) -> None:
        if self._waits > self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._file.flush()

    def close(self) -> None:
        try:
            self.flush()  # what lies in its buffer, once more
        finally:
            self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def run(rig: Rig) -> None:
    """A program, and a person whose request comes in the middle of its reply."""
    rig.engine.submit(agent("a"))
    rig.until(generated(rig, "a", 3))
    rig.engine.submit(request_of("person", SHORT))
    while rig.engine.busy:
        rig.step()
        rig.engine.check()


@layouts
@pytest.mark.parametrize("windows", [0, 1, 4])
def test_a_disk_that_fills_up_costs_nobody_a_token(
    tmp_path: Path, layout: MemoryLayout, windows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Rig(tmp_path, layout=layout, lanes=1, cache_bytes=0)
    alone.run(agent("a"))
    rig = Rig(tmp_path, layout=layout, lanes=1, parked_disk_rows=ROOMY, cache_bytes=0)
    room = windows * rig.parked.window_rows * layout.row_bytes
    file_of = Parked._file
    monkeypatch.setattr(Parked, "_file", lambda self: Filling(file_of(self), room))  # type: ignore[arg-type]
    run(rig)
    assert parked(rig) == 0, "it stayed"
    assert [e.request_id for e in rig.events if isinstance(e, Finished)] == ["a", "person"]
    assert rig.tokens("a") == alone.tokens("a")
    assert rig.finished("person").usage.completion_tokens == 4
    assert (rig.parked.disk_bytes, rig.parked.disk_max) == (0, 0)
    assert sum("No room is left for parked lanes" in line for line in rig.log) == 1
    assert len(PROMPT) > 4 * rig.parked.window_rows


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_disk_that_is_full_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own: what is written is refused when it is flushed, and when it is closed."""
    rig = Rig(tmp_path, lanes=1, parked_disk_rows=ROOMY, cache_bytes=0)
    monkeypatch.setattr(Parked, "_file", lambda self: BufferedWriter(FileIO("/dev/full", "wb")))
    run(rig)
    assert rig.finished("a").usage.completion_tokens == 12
    assert rig.finished("person").usage.completion_tokens == 4
    assert rig.parked.disk_bytes == 0

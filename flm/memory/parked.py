"""Memory of sequences without a lane: in windows, each copied in one go, on the host or in a file.

Invariants, which `check` asserts:
  * `host_bytes <= host_max` and `disk_bytes <= disk_max`: room is taken for all of a sequence
    before its first window is, and given back at once.
  * A file has no name: it is gone with us, however we end.
"""

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from flm.devices.device import Array
from flm.memory.layout import MemoryLayout, MemoryTensor
from flm.memory.snapshot import Snapshot

WINDOW_BYTES = 16 * 2**20  # of rows, copied in one go; a state comes with the last


@dataclass(eq=False, slots=True)
class Windows:
    """What a sequence has of its memory there: rows [start, end) so far, the state with the last.

    The first `read` tokens were read, those behind them decoded. A window is never of both.
    """

    start: int
    read: int
    size: int  # in bytes, taken for it
    file: IO[bytes] | None  # None: on the host
    end: int = field(init=False)
    held: list[Snapshot] = field(default_factory=list)
    written: list[tuple[int, int, bool, int]] = field(default_factory=list)  # state?, where

    def __post_init__(self) -> None:
        self.end = self.start


class Parked:
    """`folder` None: nothing goes to the disk. What cannot be written there is told `warn`."""

    def __init__(
        self,
        layout: MemoryLayout,
        *,
        host_max: int = 0,
        disk_max: int = 0,
        folder: Path | None = None,
        warn: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.layout = layout
        self.host_max = host_max
        self.disk_max = disk_max if folder else 0
        self.host_bytes = 0
        self.disk_bytes = 0
        self.window_rows = max(1, WINDOW_BYTES // max(1, layout.row_bytes))
        self._folder = folder
        self._warn = warn
        self._open: set[Windows] = set()

    def open(self, start: int, end: int, *, read: int) -> Windows | None:
        """Room for rows [start, end) and a state; None: there is none anywhere."""
        size = (end - start) * self.layout.row_bytes + self.layout.state_bytes
        if self.host_bytes + size <= self.host_max:
            windows = Windows(start, read, size, None)
            self.host_bytes += size
        elif self.disk_bytes + size <= self.disk_max and (file := self._file()):
            windows = Windows(start, read, size, file)
            self.disk_bytes += size
        else:
            return None
        self._open.add(windows)
        return windows

    def window(self, windows: Windows, end: int) -> range:
        """The rows of the next window, on the way to `end`."""
        start = windows.end
        edge = windows.read if start < windows.read else end
        return range(start, min(end, edge, start + self.window_rows))

    def put(self, windows: Windows, snapshot: Snapshot) -> None:
        """The next window. Raises OSError."""
        assert snapshot.start == windows.end, f"{snapshot.start} behind {windows.end}"
        if windows.file is None:
            windows.held.append(snapshot)
        else:
            place = windows.file.tell()
            for array in (*snapshot.rows.values(), *(snapshot.state or {}).values()):
                windows.file.write(array.data)
            windows.file.flush()
            whole = snapshot.state is not None
            windows.written.append((snapshot.start, snapshot.end, whole, place))
        windows.end = snapshot.end

    def refused(self, error: OSError | MemoryError) -> None:
        """There is less room than there was said to be: no more is taken than now is."""
        self.host_max, self.disk_max = self.host_bytes, self.disk_bytes
        self._warn(f"No room is left for parked lanes: {error}. Requests wait for a lane instead")

    def get(self, windows: Windows, start: int) -> Snapshot:
        """The rest, from row `start` on, of the window that has it. Raises OSError."""
        if windows.file is None:
            held = next(each for each in windows.held if each.start <= start < each.end)
        else:
            held = self._read(windows.file, windows, start)
        rows = {name: array[:, start - held.start :] for name, array in held.rows.items()}
        return Snapshot(start, held.end, rows, held.state)

    def close(self, windows: Windows) -> None:
        self._open.remove(windows)
        if windows.file is None:
            self.host_bytes -= windows.size
            windows.held.clear()
        else:
            self.disk_bytes -= windows.size
            with suppress(OSError):  # a full disk refuses once more what was still to be written
                windows.file.close()

    def check(self) -> None:
        on_host = [each.size for each in self._open if each.file is None]
        on_disk = [each.size for each in self._open if each.file is not None]
        assert self.host_bytes == sum(on_host) <= self.host_max
        assert self.disk_bytes == sum(on_disk) <= self.disk_max
        for windows in self._open:
            rows = (windows.end - windows.start) * self.layout.row_bytes
            assert rows <= windows.size

    def _file(self) -> IO[bytes] | None:
        assert self._folder
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return tempfile.TemporaryFile(dir=self._folder)
        except OSError as error:
            self.refused(error)
            return None

    def _read(self, file: IO[bytes], windows: Windows, start: int) -> Snapshot:
        found = (each for each in windows.written if each[0] <= start < each[1])
        first, end, whole, place = next(found)
        file.seek(place)

        def read(tensor: MemoryTensor) -> Array:
            shape = tensor.held(end - first)
            array = np.fromfile(file, tensor.dtype, int(np.prod(shape)))
            if array.nbytes != tensor.held_bytes(end - first):
                raise OSError("a parked lane's file is cut short")
            return array.reshape(shape)

        rows = {tensor.name: read(tensor) for tensor in self.layout.rows}
        state = {tensor.name: read(tensor) for tensor in self.layout.state} if whole else None
        return Snapshot(first, end, rows, state)

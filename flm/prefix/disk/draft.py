"""A snapshot on its way to the disk: files under other names until all of it is there."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flm.devices.device import Array
from flm.prefix.disk.folder import NEW, Folder
from flm.prefix.disk.frames import HEAD, Frame, RowsFormat, make_file, sync_folder
from flm.prefix.disk.index import bytes_added
from flm.prefix.disk.stored import Unwritten
from flm.prefix.disk.tree import Entry, Segment


@dataclass(eq=False, slots=True)
class Draft:
    """`segment`: the rows that the disk lacks, if any. `entry`: the new snapshot, or, for one that
    is there, as it will be with the logits that it lacks."""

    item: Unwritten
    format: RowsFormat
    folder: Folder
    segment: Segment | None
    entry: Entry
    old: Entry | None = None
    files: dict[str, int] = field(default_factory=dict)  # sizes by name
    landed: bool = False

    def __post_init__(self) -> None:
        if self.segment:
            count = self.segment.end - self.segment.start
            self.files[f"{self.segment.number}.rows"] = self.format.bytes(count)
        if self.entry.state_bytes and not self.old:
            self.files[f"{self.entry.number}.state"] = self.entry.state_bytes
        if self.entry.logits_bytes:
            self.files[f"{self.entry.number}.logits"] = self.entry.logits_bytes

    @property
    def bytes(self) -> int:
        return sum(self.files.values())

    @property
    def bytes_indexed(self) -> int:
        return bytes_added(self.segment.end - self.segment.start if self.segment else 0)

    def make(self) -> None:
        for name, size in self.files.items():
            make_file(self._new(name), size)

    def write(self) -> Iterator[int]:
        """A little at a time; how many bytes each. All is synced behind the last."""
        if segment := self.segment:
            with self._filling(f"{segment.number}.rows") as file:
                extent = range(segment.start, segment.end)
                yield from self.format.write(file, segment.number, extent, self.item.pieces)
        frame = Frame(self.entry.number, 0, self.entry.offset)
        state = [self.item.state[tensor.name] for tensor in self.format.layout.state]
        logits = [] if self.item.logits is None else [self.item.logits]
        blobs: list[tuple[str, Sequence[Array]]] = [(".state", state), (".logits", logits)]
        for suffix, arrays in blobs:
            if (name := f"{self.entry.number}{suffix}") in self.files:
                with self._filling(name) as file:
                    yield frame.write(file, arrays)

    def land(self) -> None:
        for name in self.files:
            self._new(name).rename(self.folder.path / name)
        sync_folder(self.folder.path)

    def drop(self) -> None:
        """Whatever has not landed."""
        for name in () if self.landed else self.files:
            self._new(name).unlink(missing_ok=True)
            (self.folder.path / name).unlink(missing_ok=True)

    def _new(self, name: str) -> Path:
        return self.folder.path / f"{name}{NEW}"

    @contextmanager
    def _filling(self, name: str) -> Iterator[int]:
        file = os.open(self._new(name), os.O_WRONLY | os.O_CLOEXEC)
        try:
            yield file
            os.fsync(file)
        finally:
            os.close(file)


def frame_bytes(arrays_bytes: int) -> int:
    """Of a file of state or logits, 0 if there are none."""
    return HEAD.size + arrays_bytes if arrays_bytes else 0

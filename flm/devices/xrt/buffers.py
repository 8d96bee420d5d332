"""Buffer objects of pyxrt: roots, and parts of them, one level deep.

Everything is checked before pyxrt sees it: what is out of range there is a dead process, and a part
of a part has the wrong address. A view of a buffer that is gone is, too: whoever keeps one keeps
its span.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from flm.devices.device import Array
from flm.errors import NoRoom

LINE_BYTES = 64  # a cache line: no two spans share one, so neither's sync moves the other's bytes
ROOT_BYTES = 16 * 2**20  # of a root that several spans share, at the least


@dataclass(frozen=True, slots=True)
class Bank:
    """Where buffers are made: `group` is what a kernel's group_id says of its argument."""

    xrt: ModuleType
    device: Any
    flags: Any  # host_only for data, cacheable for instructions
    group: int


class Root:
    def __init__(self, bank: Bank, nbytes: int) -> None:
        assert nbytes > 0
        self.xrt, self.nbytes = bank.xrt, nbytes
        try:
            self.handle = bank.xrt.bo(bank.device, nbytes, bank.flags, bank.group)
        except RuntimeError as error:
            raise NoRoom(
                f"the NPU's driver gives no buffer of {nbytes:,} bytes: {error}",
                fix="raise the limit of locked memory (ulimit -l unlimited), or use a shorter "
                "--ctx-len or fewer --lanes",
            ) from error
        self.array: Array = np.frombuffer(self.handle.map(), np.uint8)
        assert self.array.flags.writeable
        assert not self.array.ctypes.data % LINE_BYTES

    def span(self, start: int, nbytes: int) -> Span:
        assert not start % LINE_BYTES, start
        assert 0 < nbytes <= self.nbytes - start, (start, nbytes, self.nbytes)
        return Span(self, start, nbytes)


class Span:
    """Bytes of a root: what a run takes for an argument, and what is synced."""

    def __init__(self, root: Root, start: int, nbytes: int) -> None:
        self.root, self.start, self.nbytes = root, start, nbytes
        whole = nbytes == root.nbytes
        self.handle = root.handle if whole else root.xrt.bo(root.handle, nbytes, start)
        self.array: Array = root.array[start : start + nbytes]

    def part(self, start: int) -> Span:
        """From a byte on. Of the root: parts of parts lose an offset."""
        assert not start % 4, start
        assert 0 <= start < self.nbytes, (start, self.nbytes)
        return Span(self.root, self.start + start, self.nbytes - start) if start else self

    def to_device(self, start: int = 0, nbytes: int | None = None) -> None:
        self._sync(self.root.xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE, start, nbytes)

    def from_device(self, start: int = 0, nbytes: int | None = None) -> None:
        self._sync(self.root.xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE, start, nbytes)

    def _sync(self, direction: Any, start: int, nbytes: int | None) -> None:
        nbytes = self.nbytes - start if nbytes is None else nbytes
        assert 0 <= start < start + nbytes <= self.nbytes, (start, nbytes, self.nbytes)
        self.root.handle.sync(direction, nbytes, self.start + start)


class Store:
    """Spans for as long as it lives, many to a root."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self._root: Root | None = None
        self._end = 0

    def take(self, nbytes: int) -> Span:
        """Zeros, on the device, too."""
        room = -(-nbytes // LINE_BYTES) * LINE_BYTES
        if self._root is None or self._end + room > self._root.nbytes:
            self._root = Root(self._bank, max(room, ROOT_BYTES))
            self._end = 0
        span = self._root.span(self._end, nbytes)
        self._end += room
        span.array[:] = 0
        span.to_device()
        return span


def per_lane(bank: Bank, lanes: int, nbytes: int) -> list[Span]:
    """A span each, zeros on the device, too."""
    room = -(-nbytes // LINE_BYTES) * LINE_BYTES
    root = Root(bank, lanes * room)
    spans = [root.span(lane * room, nbytes) for lane in range(lanes)]
    for span in spans:
        span.array[:] = 0
        span.to_device()
    return spans

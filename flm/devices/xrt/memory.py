"""Memory as a program sees it: the host's own copy, and its twin, what a device has of it.

Each side has what the other wrote once it was carried over: `push` brings the host's to the device,
`pull` what the device has newer to the host, only what is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flm.core.tensor import TensorSpec
from flm.devices.cpu import CpuBuffer
from flm.devices.device import Array
from flm.devices.xrt.buffers import Span


class Twin(Protocol):
    """What a device has of memory tensors of all lanes. `which` of them: rows have two."""

    def span(self, lane: int) -> Span: ...

    def push(self, which: Sequence[int], lane: int, rows: range) -> None: ...

    def pull(self, which: Sequence[int], lane: int, rows: range) -> None: ...

    def advance(self, lane: int, rows: range) -> None:
        """A kernel is about to write these: from now on they are newer than the host's."""
        ...


class NpuBuffer:
    """Memory that a program of this process reads and writes: the host's array, and what the device
    has of it from the first pass on (`twin`, on the buffer of all lanes).
    """

    def __init__(
        self, spec: TensorSpec, array: Array, root: NpuBuffer | None = None, first: int = 0
    ) -> None:
        self.cpu: CpuBuffer = (
            CpuBuffer(spec, array) if root is None else root.cpu.part(first, first + len(array))
        )
        self.root, self.lanes = root or self, range(first, first + len(array))
        self._twin: tuple[Twin, int] | None = None
        self._pushed: dict[int, range] = {}  # by lane, before there was a twin
        self._parts: dict[tuple[int, int], NpuBuffer] = {}

    @property
    def spec(self) -> TensorSpec:
        return self.cpu.spec

    def array(self) -> Array:
        return self.cpu.array()

    def part(self, start: int, stop: int) -> NpuBuffer:
        if (start, stop) == (0, len(self.lanes)):
            return self
        if (start, stop) not in self._parts:
            array = self.array()[start:stop]
            self._parts[start, stop] = NpuBuffer(self.spec, array, self, start)
        return self._parts[start, stop]

    def attach(self, twin: Twin, which: int) -> None:
        """What was pushed so far is pushed to it."""
        self._twin = twin, which
        for lane, rows in self._pushed.items():
            twin.push((which,), lane, rows)
        self._pushed.clear()

    def to_device(self, rows: range | None = None) -> None:
        root, rows = self.root, self._rows(rows)
        for lane in self.lanes:
            if root._twin:
                twin, which = root._twin
                twin.push((which,), lane, rows)
            else:
                before = root._pushed.get(lane, rows)
                span = range(min(before.start, rows.start), max(before.stop, rows.stop))
                root._pushed[lane] = span

    def to_host(self, rows: range | None = None) -> None:
        if self.root._twin:
            twin, which = self.root._twin
            for lane in self.lanes:
                twin.pull((which,), lane, self._rows(rows))

    def _rows(self, rows: range | None) -> range:
        shape = self.spec.shape
        return range(shape[2] if len(shape) > 2 else 0) if rows is None else rows

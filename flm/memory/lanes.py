"""Lanes: room on the device for running sequences, every tensor of all lanes in one buffer.

Invariants, which `check` asserts:
  * The first `rows` rows of a lane have a meaning, and room; what lies behind them is junk.
  * `resident` are the tokens whose rows, from the first on, the lane holds as prefill read them.
    Decode adds up in another order, so its rows are never resident.
  * A free lane keeps its resident rows: a sequence that begins alike need not have them copied.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flm.core.alike import common_length
from flm.core.sizes import mib
from flm.devices.device import Buffer, Device
from flm.errors import NoRoom
from flm.memory.layout import MemoryLayout, MemoryTensor


@dataclass(eq=False, slots=True)
class Lane:
    busy: bool = False
    rows: int = 0
    resident: list[int] = field(default_factory=list)
    released_at: int = 0  # counts releases, so the smallest is the longest unused


class Lanes:
    """`capacity` rows for each of `count` lanes; it grows by doubling, up to `capacity_max`."""

    def __init__(
        self,
        device: Device,
        layout: MemoryLayout,
        *,
        count: int,
        capacity_max: int,
        capacity_start: int = 1024,
    ) -> None:
        self.layout = layout
        self.capacity = min(capacity_start, capacity_max)
        self.capacity_max = capacity_max
        self._device = device
        self._lanes = [Lane() for _ in range(count)]
        self._buffers = {t.name: self._allocate(t, self.capacity) for t in layout.tensors}
        self._parts: dict[tuple[int, int], dict[str, Buffer]] = {}
        self._releases = itertools.count(1)

    def __len__(self) -> int:
        return len(self._lanes)

    def __getitem__(self, lane: int) -> Lane:
        return self._lanes[lane]

    @property
    def free(self) -> int:
        return sum(not lane.busy for lane in self._lanes)

    def acquire(self, tokens: Sequence[int]) -> int | None:
        """The best free lane: beside busy ones, since a pass runs over adjacent lanes; of these
        the one that holds most of what `tokens` begin with; of these the longest unused.
        """
        wanted = list(tokens)

        def merit(index: int) -> tuple[int, int, int]:
            lane = self._lanes[index]
            beside = sum(other.busy for other in self._lanes[max(0, index - 1) : index + 2])
            return beside, common_length(lane.resident, wanted), -lane.released_at

        free = [index for index, lane in enumerate(self._lanes) if not lane.busy]
        if not free:
            return None
        best = max(free, key=merit)
        self._lanes[best].busy = True
        return best

    def release(self, lane: int) -> None:
        released = self._lanes[lane]
        assert released.busy, f"lane {lane} is free"
        released.busy = False
        released.rows = len(released.resident)
        released.released_at = next(self._releases)

    def rewind(self, lane: int, rows: int) -> None:
        """Rows from `rows` on are about to be written: what they held is junk from here."""
        held = self._lanes[lane]
        held.rows = min(held.rows, rows)
        del held.resident[rows:]

    def advance(self, lane: int, tokens: Sequence[int], *, read: bool) -> None:
        """The rows of `tokens` were written behind the others: read by prefill, or decoded."""
        held = self._lanes[lane]
        if read and len(held.resident) == held.rows:
            held.resident.extend(tokens)
        held.rows += len(tokens)

    def forget(self, lane: int) -> None:
        """A pass failed half-way: nothing in the lane can be relied on."""
        self.rewind(lane, 0)

    def buffers(self, start: int, stop: int) -> Mapping[str, Buffer]:
        """The memory of lanes [start, stop) by tensor name; the same objects until growth."""
        parts = self._parts.get((start, stop))
        if parts is None:
            parts = {name: whole.part(start, stop) for name, whole in self._buffers.items()}
            self._parts[start, stop] = parts
        return parts

    def ensure(self, rows: int) -> None:
        """Make room for `rows` rows in every lane. Raises NoRoom, and then nothing has changed."""
        if rows <= self.capacity:
            return
        capacity = self.capacity
        while capacity < rows:
            capacity *= 2
        capacity = min(capacity, self.capacity_max)
        if capacity < rows:
            raise NoRoom(
                f"a sequence needs {rows:,} rows, a lane holds {self.capacity_max:,}",
                fix="shorten the prompt or max_tokens, or start with a larger --ctx-len",
            )
        self._grow(capacity)

    def check(self) -> None:
        assert self.capacity <= self.capacity_max
        for index, lane in enumerate(self._lanes):
            assert len(lane.resident) <= lane.rows <= self.capacity, f"lane {index}: {lane}"
            assert lane.busy or lane.rows == len(lane.resident), f"free lane {index}: {lane}"

    def _grow(self, capacity: int) -> None:
        tensors = self.layout.rows
        try:
            # All before any copy, so that a refusal changes nothing; untouched pages are free.
            grown = {t.name: self._allocate(t, capacity) for t in tensors}
        except MemoryError as error:
            total = len(self) * capacity * self.layout.row_bytes
            raise NoRoom(
                f"no memory for {capacity:,} rows in each of {len(self)} lanes ({mib(total)})",
                fix="use fewer --lanes, --kv-dtype f16 or a smaller --ctx-len",
            ) from error
        self._parts.clear()
        before = {t.name: self._buffers[t.name] for t in tensors}
        self._buffers.update(grown)  # all at once: the device may be lost before all are copied
        self.capacity = capacity
        for tensor in tensors:  # dropping the old ones by turns, so the peak is one tensor more
            old, new = before.pop(tensor.name), grown[tensor.name]
            for index, lane in enumerate(self._lanes):
                if lane.rows:
                    rows = range(lane.rows)
                    old.part(index, index + 1).to_host(rows)
                    new.array()[index, :, : lane.rows] = old.array()[index, :, : lane.rows]
                    new.part(index, index + 1).to_device(rows)

    def _allocate(self, tensor: MemoryTensor, capacity: int) -> Buffer:
        return self._device.allocate(tensor.spec(lanes=len(self._lanes), capacity=capacity))

"""Executes steps, and carries memory between a lane and the host.

Input buffers are made once and written over, so that a device may keep what it bound to them.
Every lane has its own row of logits, which stands until the lane's next pass.
"""

from collections.abc import Sequence
from threading import Lock

from flm.core.alike import common_length
from flm.core.step import Span, Step
from flm.core.tensor import TensorSpec
from flm.devices.device import IDS, LAST, LOGITS, OFFSETS, Array, Buffer, Device, Program
from flm.memory.arrays import empty, empty_rows
from flm.memory.lanes import Lanes
from flm.memory.layout import MemoryLayout
from flm.memory.snapshot import Snapshot, copy
from flm.runner.batch import adjacent
from flm.runner.eyes import Eyes
from flm.runner.seeing import Seeing, words


class Runner:
    """Every method is for the thread that owns the device, but `cancel`, which is for any."""

    def __init__(
        self,
        program: Program,
        device: Device,
        layout: MemoryLayout,
        lanes: Lanes,
        *,
        vocabulary: int,
        eyes: Eyes | None = None,
    ) -> None:
        self.eyes = eyes
        self._seeing = Seeing(device, len(lanes), eyes) if eyes else None
        self._program = program
        self._device = device
        self._layout = layout
        self._lanes = lanes
        count = len(lanes)
        self._new_ids = device.allocate(TensorSpec(IDS, (count, 1), "int64"))
        self._chunk_ids = self._new_ids
        self._offsets = device.allocate(TensorSpec(OFFSETS, (count,), "int32"))
        self._last = device.allocate(TensorSpec(LAST, (1,), "int64"))
        self._logits = device.allocate(TensorSpec(LOGITS, (count, 1, vocabulary)))
        self._running: Step | None = None
        self._lock = Lock()

    @property
    def grid(self) -> int:
        return self._program.grid

    @property
    def whole(self) -> bool:
        """Whether a pass has to have all of a picture's tokens, or none."""
        return self.eyes is not None and self.eyes.sight.whole

    def run(self, step: Step) -> dict[int, Array]:
        """Logits [vocabulary] float32 by lane, of each span's last token.

        They are views that the lane's next pass writes over. Raises NoRoom before anything has
        changed; DeviceFailed or PassCancelled with the memory of the spans half-written.
        """
        first = step.spans[0]
        lone = step.prefill and len(first.tokens) == 1
        # A pass of one row adds up in another order than one of several. Where only rows carry
        # over, a lone prefill token runs as two; a state would see it twice, so there a token is
        # alone only as a whole prompt, or beyond a grid, and what it leaves is no prompt's start.
        twice = lone and not self._layout.state
        assert not lone or twice or not first.start or self.grid > 1, f"{first} is a lone row"
        self._lanes.ensure(max(span.end for span in step.spans) + twice)
        for span in step.spans:
            assert self._lanes[span.lane].rows >= span.start, f"{span} leaves a gap"
            self._lanes.rewind(span.lane, span.start)
        with self._lock:
            self._running = step
        try:
            if step.prefill:
                self._read(first, twice=twice)
            else:
                for spans in adjacent(step.spans):
                    self._decode(spans)
        finally:
            with self._lock:
                self._running = None
        for span in step.spans:
            as_read = step.prefill and twice == lone and span.end >= self._layout.first_min
            read = max(0, self._read_to(span.end) - span.start) if as_read else 0
            self._lanes.advance(span.lane, span.tokens[:read], read=True)
            self._lanes.advance(span.lane, span.tokens[read:], read=False)
        logits = self._logits.array()
        return {span.lane: logits[span.lane, 0] for span in step.spans}

    def cancel(self, step: Step) -> None:
        """End `step` soon if it is the one that runs; from any thread."""
        with self._lock:
            if self._running is step:
                self._program.cancel()
                if self.eyes:
                    self.eyes.cancel()

    def save(self, lane: int, start: int, end: int) -> Snapshot:
        """A copy of rows [start, end) and of the state, which must be that after `end` tokens."""
        held = self._lanes[lane]
        assert end <= len(held.resident), f"rows up to {end} were not all read by prefill"
        assert not self._layout.state or end == held.rows, f"the state is that of {held.rows}"
        return self._copied(lane, start, *empty(self._layout, end - start), end)

    def park(self, lane: int, start: int, end: int) -> Snapshot:
        """The same of rows that may be decoded ones; the state comes with the lane's last row."""
        if end < self._lanes[lane].rows:
            rows = empty_rows(self._layout, end - start)
            return self._copied(lane, start, rows, None, end)
        return self._copied(lane, start, *empty(self._layout, end - start), end)

    def unpark(self, lane: int, tokens: Sequence[int], snapshot: Snapshot, *, read: bool) -> None:
        """Put a snapshot's `tokens` behind the lane's rows, which were read if `read`."""
        held = self._lanes[lane]
        assert held.rows == snapshot.start, f"{snapshot.start} behind {held.rows}"
        self._lanes.ensure(snapshot.end)
        self._write_rows(lane, [snapshot], snapshot.start)
        if snapshot.state is not None:
            self._write_state(lane, snapshot)
        self._lanes.advance(lane, tokens, read=read)

    def restore(self, lane: int, tokens: Sequence[int], snapshots: Sequence[Snapshot]) -> int:
        """Make the lane's memory that after `tokens`, of which `snapshots` are a path from 0.

        Gives the bytes that were copied: rows that the lane still holds are not. Raises NoRoom.
        """
        wanted = list(tokens)
        ends = [0, *(snapshot.end for snapshot in snapshots)]
        assert ends[-1] == len(wanted), f"snapshots up to {ends[-1]} for {len(wanted)} tokens"
        assert ends[:-1] == [snapshot.start for snapshot in snapshots], f"not a path: {ends}"
        self._lanes.ensure(len(wanted))
        resident = common_length(self._lanes[lane].resident, wanted)
        self._lanes.rewind(lane, resident)
        self._write_rows(lane, snapshots, resident)
        self._write_state(lane, snapshots[-1] if snapshots else None)
        self._lanes.advance(lane, wanted[resident:], read=True)
        rows = (len(wanted) - resident) * self._layout.row_bytes
        return rows + (self._layout.state_bytes if snapshots else 0)

    def _read_to(self, end: int) -> int:
        """Up to where rows are those that any longer prompt would have. With a state they come of
        whole steps of the grid.
        """
        return end - end % self.grid if self._layout.state else end

    def _read(self, span: Span, *, twice: bool) -> None:
        tokens = span.tokens * 2 if twice else span.tokens
        if self._chunk_ids.spec.shape != (1, len(tokens)):
            self._chunk_ids = self._device.allocate(TensorSpec(IDS, (1, len(tokens)), "int64"))
        self._chunk_ids.array()[0] = tokens if self._seeing is None else words(tokens)
        self._pass([span], self._chunk_ids, last=len(span.tokens) - 1)

    def _decode(self, spans: list[Span]) -> None:
        ids = self._new_ids.part(spans[0].lane, spans[-1].lane + 1)
        ids.array()[:, 0] = [span.tokens[0] for span in spans]
        self._pass(spans, ids, last=0)

    def _pass(self, spans: list[Span], ids: Buffer, *, last: int) -> None:
        """`ids` [len(spans), T] are written already, on the host."""
        start, stop = spans[0].lane, spans[-1].lane + 1
        offsets, logits = self._offsets.part(start, stop), self._logits.part(start, stop)
        offsets.array()[:] = [span.start for span in spans]
        self._last.array()[0] = last
        inputs = {IDS: ids, OFFSETS: offsets, LAST: self._last}
        if self._seeing:
            inputs |= self._seeing.inputs(spans, ids.spec.shape[1])
        for buffer in inputs.values():
            buffer.to_device()
        self._program.run({**self._lanes.buffers(start, stop), **inputs, LOGITS: logits})
        logits.to_host()

    def _copied(
        self,
        lane: int,
        start: int,
        rows: dict[str, Array],
        state: dict[str, Array] | None,
        end: int,
    ) -> Snapshot:
        """Of the lane's memory, into these arrays."""
        buffers = self._lanes.buffers(lane, lane + 1)
        pairs = []
        for name, array in rows.items():
            buffers[name].to_host(range(start, end))
            pairs.append((array, buffers[name].array()[0, :, start:end]))
        for name, array in (state or {}).items():
            buffers[name].to_host()
            pairs.append((array, buffers[name].array()[0]))
        copy(pairs)
        return Snapshot(start, end, rows, state)

    def _write_rows(self, lane: int, snapshots: Sequence[Snapshot], start: int) -> None:
        """Those of `snapshots` from row `start` on."""
        buffers = self._lanes.buffers(lane, lane + 1)
        pairs = []
        for snapshot in snapshots:
            first = max(snapshot.start, start)
            for name, array in snapshot.rows.items() if first < snapshot.end else ():
                target = buffers[name].array()[0, :, first : snapshot.end]
                pairs.append((target, array[:, first - snapshot.start :]))
        copy(pairs)
        if pairs:
            for tensor in self._layout.rows:
                buffers[tensor.name].to_device(range(start, snapshots[-1].end))

    def _write_state(self, lane: int, snapshot: Snapshot | None) -> None:
        """The state after `snapshot`; without one, that before any token: zero."""
        buffers = self._lanes.buffers(lane, lane + 1)
        arrays = {t.name: buffers[t.name].array()[0] for t in self._layout.state}
        if snapshot is None:
            for array in arrays.values():
                array[...] = 0
        else:
            assert snapshot.state is not None, f"{snapshot.end} can only be passed through"
            copy((array, snapshot.state[name]) for name, array in arrays.items())
        for name in arrays:
            buffers[name].to_device()

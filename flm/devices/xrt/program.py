"""A model on an NPU: a token of a lane by one plan, a chunk of a prompt by another, one memory.

Chunks are those from multiples of CHUNK on. Of a chunk that a pass has a part of, the plan takes
that part at its place, so where only rows carry over, a token's numbers hang on no pass. A state is
that after whole chunks only: the rest of a prompt is read by the CPU, and so is all where there is
no plan for prompts. Lanes that decode together run one after another, so a lane's numbers never
hang on its neighbours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from flm.core.tensor import TensorSpec
from flm.devices.cpu import CpuBuffer, CpuProgram, open_session
from flm.devices.device import IDS, LAST, LOGITS, OFFSETS, Array
from flm.devices.xrt.lane import Lane
from flm.devices.xrt.memory import NpuBuffer, Twin
from flm.devices.xrt.package import Packages
from flm.devices.xrt.parts import whole_model
from flm.devices.xrt.phases import Phase, phases_of
from flm.devices.xrt.plan import CHUNK, Plan
from flm.devices.xrt.ready import ReadyPlan, Weights
from flm.devices.xrt.rows import BOTH, TiledRows
from flm.devices.xrt.states import LaidState
from flm.errors import NoRoom, PassCancelled
from npu_kernels.binding import Memory, State

BEAT_S = 0.05  # how often a pass on the CPU asks whether to go on


class NpuProgram:
    def __init__(
        self,
        xrt: ModuleType,
        device: Any,
        path: Path,
        packages: Packages,
        *,
        threads: int,
        capacity: int,
    ) -> None:
        """`capacity`: rows that a lane may hold."""
        self._weights = Weights()

        def ready(phase: Phase) -> ReadyPlan:
            return ReadyPlan(xrt, device, path, phase, packages, self._weights, threads=threads)

        decode, prefill = phases_of(path, capacity)
        self.plan: Plan = decode.plan
        graph = decode.graph
        self._inputs, self._outputs = graph.inputs, graph.outputs
        self._decoder = ready(decode)
        self._reader = ready(prefill) if prefill else None
        self._stateful = self.plan.memory != self.plan.rows
        self._cpu: CpuProgram | None = None
        if self._stateful or not self._reader:
            tiled = (name for memory in self.plan.rows for name in memory.names)
            whole = whole_model(graph, tiled).SerializeToString()
            self._cpu = CpuProgram(open_session(whole, graph.folder, threads=threads))
        self._memory: dict[str, NpuBuffer] = {}
        self._twins: dict[str, Twin] = {}
        self._lanes: dict[tuple[int, ReadyPlan], Lane] = {}

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        return self._inputs

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        return self._outputs

    @property
    def grid(self) -> int:
        return CHUNK if self._reader else 1

    def run(self, buffers: Mapping[str, NpuBuffer], go_on: Callable[[], bool]) -> None:
        """Asks `go_on` before each step, and now and then while the CPU reads."""
        memory = {n: b for n, b in buffers.items() if n not in (IDS, OFFSETS, LAST, LOGITS)}
        self._attach({name: buffer.root for name, buffer in memory.items()})
        first = next(iter(memory.values())).lanes.start
        ids, last = buffers[IDS].array(), int(buffers[LAST].array()[0])
        for place, offset in enumerate(buffers[OFFSETS].array().tolist()):
            logits, wanted = buffers[LOGITS].array()[place], offset + last
            for ready, rows in self._parts(range(offset, offset + ids.shape[1])):
                own = ids[place, rows.start - offset : rows.stop - offset]
                part = _Part(first + place, rows, own, wanted if wanted in rows else None, logits)
                if ready:
                    self._run(ready, part, go_on)
                else:
                    self._run_on_cpu(part, go_on)

    def close(self) -> None:
        """In order: runs, what they use, kernels, their contexts."""
        self._forget()
        self._memory = {}
        self._weights.clear()
        for ready in (self._reader, self._decoder):
            if ready:
                ready.close()

    def _forget(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
        self._twins.clear()

    def _parts(self, rows: range) -> Iterator[tuple[ReadyPlan | None, range]]:
        """What is computed at a time, and by which plan, or by none: the CPU."""
        start = rows.start
        while self._reader and len(rows) > 1 and start < rows.stop:
            end = min(start - start % CHUNK + CHUNK, rows.stop)
            if self._stateful and end - start < CHUNK:
                break
            yield self._reader, range(start, end)
            start = end
        if rest := range(start, rows.stop):
            yield self._decoder if len(rest) == 1 else None, rest

    def _run(self, ready: ReadyPlan, part: _Part, go_on: Callable[[], bool]) -> None:
        """Beside the part's own, a plan's tokens are any: nobody reads what comes of them."""
        start = part.rows.start - part.rows.start % ready.plan.tokens
        ready.given[IDS][0, part.rows.start - start : part.rows.stop - start] = part.ids
        ready.given[OFFSETS][:] = start
        if part.wanted is not None:
            ready.given[LAST][:] = part.wanted - start
        lane = self._lane(part.lane, ready)
        if not lane.run(part.rows, go_on, logits=part.wanted is not None):
            raise PassCancelled("the pass was cancelled", fix="none needed")
        if part.wanted is not None:
            part.logits[:] = ready.logits()[0]

    def _run_on_cpu(self, part: _Part, go_on: Callable[[], bool]) -> None:
        assert self._cpu, "a plan takes all"
        rows, twins = part.rows, list(dict.fromkeys(self._twins.values()))
        given = {
            IDS: part.ids[None],
            OFFSETS: np.array([rows.start], np.int32),
            LAST: np.array([(rows[-1] if part.wanted is None else part.wanted) - rows.start]),
            LOGITS: part.logits[None],
        }
        buffers = {n: root.part(part.lane, part.lane + 1).cpu for n, root in self._memory.items()}
        for name, array in given.items():
            buffers[name] = CpuBuffer(TensorSpec(name, array.shape, array.dtype.name), array)
        for twin in twins:
            twin.pull(BOTH, part.lane, range(rows.start))
        with _asking(go_on, self._cpu.cancel):
            self._cpu.run(buffers)
        for twin in twins:
            twin.push(BOTH, part.lane, rows)

    def _attach(self, memory: dict[str, NpuBuffer]) -> None:
        """Memory that grew is other memory; runs and bindings would keep the old one alive."""
        if memory == self._memory:
            return
        self._forget()
        self._memory = memory
        for each in self.plan.memory:
            twin = self._twin(each)
            for which, name in enumerate(each.names):
                memory[name].attach(twin, which)
                self._twins[name] = twin

    def _twin(self, memory: Memory) -> Twin:
        arrays = [self._memory[name].array() for name in memory.names]
        bank, nbytes = self._decoder.bank, self._decoder.bytes_of(memory)
        if isinstance(memory, State):
            return LaidState(bank, arrays[0], memory.laid, nbytes)
        _, heads, held, width = arrays[0].shape
        capacity = nbytes // (4 * heads * width)  # keys and values in bfloat16
        if held > capacity:
            raise NoRoom(
                f"a lane of the NPU has room for {capacity:,} tokens, not {held:,}",
                fix="load the model with a larger --ctx-len",
            )
        return TiledRows(bank, arrays[0], arrays[1], capacity)

    def _lane(self, number: int, ready: ReadyPlan) -> Lane:
        if (number, ready) not in self._lanes:
            memory = {n: root.part(number, number + 1).cpu for n, root in self._memory.items()}
            self._lanes[number, ready] = Lane(number, ready, memory, self._twins)
        return self._lanes[number, ready]


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Tokens of a lane, and the row among theirs whose logits are wanted, [1, vocabulary]."""

    lane: int
    rows: range
    ids: Array
    wanted: int | None
    logits: Array


@contextmanager
def _asking(go_on: Callable[[], bool], cancel: Callable[[], None]) -> Iterator[None]:
    """Meanwhile `go_on` is asked again and again, and once it says no, what runs is cancelled."""
    over = threading.Event()

    def ask() -> None:
        while not over.wait(BEAT_S):
            if not go_on():
                cancel()

    asker = threading.Thread(target=ask, name="flm-npu-asks", daemon=True)
    asker.start()
    try:
        yield
    finally:
        over.set()
        asker.join()

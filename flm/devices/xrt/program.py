"""A model on an NPU: one token of a lane by the plan, several tokens by the CPU, over one memory.

No plan uses the kernels for many tokens yet: a pass of more than one runs the whole graph on the
CPU, and what it leaves in memory goes to the device. Lanes that decode together run one after
another, so a lane's numbers never hang on its neighbours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from flm.core.tensor import TensorSpec
from flm.devices.cpu import CpuProgram, open_session
from flm.devices.device import IDS, LAST, LOGITS, OFFSETS
from flm.devices.xrt.graph import read
from flm.devices.xrt.lane import Lane
from flm.devices.xrt.memory import BOTH, LaidState, NpuBuffer, TiledRows, Twin
from flm.devices.xrt.package import Packages
from flm.devices.xrt.parts import whole_model
from flm.devices.xrt.plan import Plan, plan_of
from flm.devices.xrt.ready import ReadyPlan
from flm.errors import NoRoom, PassCancelled
from npu_kernels.binding import Memory

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
        graph = read(path, capacity)
        self.plan: Plan = plan_of(graph)
        tiled = (name for memory in self.plan.rows for name in memory.names)
        whole = whole_model(graph, tiled).SerializeToString()
        self._reader = CpuProgram(open_session(whole, graph.folder, threads=threads))
        self._ready = ReadyPlan(xrt, device, path, graph, self.plan, packages, threads=threads)
        self._memory: dict[str, NpuBuffer] = {}
        self._twins: dict[str, Twin] = {}
        self._lanes: dict[int, Lane] = {}

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        return self._reader.inputs

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        return self._reader.outputs

    def run(self, buffers: Mapping[str, NpuBuffer], go_on: Callable[[], bool]) -> None:
        """Asks `go_on` before each step, and now and then while the CPU reads."""
        memory = {n: b for n, b in buffers.items() if n not in (IDS, OFFSETS, LAST, LOGITS)}
        self._attach({name: buffer.root for name, buffer in memory.items()})
        first = next(iter(memory.values())).lanes.start
        ids, offsets = buffers[IDS].array(), buffers[OFFSETS].array().tolist()
        lanes = range(first, first + len(ids))
        if ids.shape[1] > 1:
            self._read(buffers, lanes, offsets, go_on)
            return
        given, logits = self._ready.given, buffers[LOGITS].array()
        for place, (lane, offset) in enumerate(zip(lanes, offsets, strict=True)):
            given[IDS][:], given[OFFSETS][:] = ids[place], offset
            if not self._lane(lane).run(offset, go_on):
                raise PassCancelled("the pass was cancelled", fix="none needed")
            logits[place] = self._ready.logits()[0]

    def close(self) -> None:
        """In order: runs, what they use, kernels, their context."""
        self._forget()
        self._memory = {}
        self._ready.close()

    def _forget(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
        self._twins.clear()

    def _read(
        self,
        buffers: Mapping[str, NpuBuffer],
        lanes: range,
        offsets: list[int],
        go_on: Callable[[], bool],
    ) -> None:
        twins, tokens = list(dict.fromkeys(self._twins.values())), buffers[IDS].array().shape[1]
        for lane, offset in zip(lanes, offsets, strict=True):
            for twin in twins:
                twin.pull(BOTH, lane, range(offset))
        with _asking(go_on, self._reader.cancel):
            self._reader.run({name: buffer.cpu for name, buffer in buffers.items()})
        for lane, offset in zip(lanes, offsets, strict=True):
            for twin in twins:
                twin.push(BOTH, lane, range(offset, offset + tokens))

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
        bank, nbytes = self._ready.bank, self._ready.bytes_of(memory)
        if memory not in self.plan.rows:
            return LaidState(bank, arrays[0], memory.layout, nbytes)
        _, heads, held, width = arrays[0].shape
        capacity = nbytes // (4 * heads * width)  # keys and values in bfloat16
        if held > capacity:
            raise NoRoom(
                f"a lane of the NPU has room for {capacity:,} tokens, not {held:,}",
                fix="load the model with a larger --ctx-len",
            )
        return TiledRows(bank, arrays[0], arrays[1], capacity)

    def _lane(self, number: int) -> Lane:
        if number not in self._lanes:
            memory = {n: root.part(number, number + 1).cpu for n, root in self._memory.items()}
            self._lanes[number] = Lane(number, self._ready, memory, self._twins)
        return self._lanes[number]


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

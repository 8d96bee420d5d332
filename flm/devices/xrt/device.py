"""An NPU behind a process: arrays in memory that both see, and syncs and passes as commands.

Invariants:
  * When the worker has ended, hangs, or says that its device has, DeviceLost is raised once. The
    next command finds a new worker, with the same programs and buffers; what the device has in
    these is not to be relied on.
  * A worker that ends too often is not started again until some time has passed: till then every
    command raises DeviceLost at once. One that ends by a mistake of ours (DeviceFault) does not
    count: the device is as good as before.
"""

import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock

from flm import errors
from flm.core.tensor import TensorSpec
from flm.devices.device import Array, Buffer
from flm.devices.xrt.arena import Arena
from flm.devices.xrt.messages import (
    Allocate,
    Answer,
    Command,
    Failed,
    Free,
    Load,
    Loaded,
    Open,
    Part,
    Run,
    Sync,
)
from flm.devices.xrt.package import KERNELS
from flm.devices.xrt.process import COMMAND, FIX, WorkerProcess
from flm.errors import DeviceFault, DeviceLost, FlmError
from flm.settings import NPU, NPU_SIM

OPEN_S_MAX = 60.0
LOAD_S_MAX = 900.0  # kernels of a simulated package may have to be compiled
SYNC_S_MAX = 30.0
# Between two dispatches of a pass. The driver gives up on one after 4 to 6 s; a simulator is slow.
STILL_S_MAX = {NPU: 10.0, NPU_SIM: 300.0}
# So many within so long: it is not started again till they are past.
DEATHS_MAX, DEATHS_S = 4, 600.0


class XrtBuffer:
    def __init__(self, device: "XrtDevice", spec: TensorSpec, array: Array, part: Part) -> None:
        self._device = device
        self._spec, self._array = spec, array
        self.place = part
        self._parts: dict[tuple[int, int], XrtBuffer] = {}

    @property
    def spec(self) -> TensorSpec:
        return self._spec

    def array(self) -> Array:
        return self._array

    def part(self, start: int, stop: int) -> "XrtBuffer":
        assert 0 <= start < stop <= self._spec.shape[0], f"[{start}, {stop}) of {self._spec}"
        if (start, stop) not in self._parts:
            array = self._array[start:stop]
            spec = TensorSpec(self._spec.name, array.shape, self._spec.dtype)
            place = Part(self.place.buffer, start, stop)
            self._parts[start, stop] = XrtBuffer(self._device, spec, array, place)
        return self._parts[start, stop]

    def to_device(self, rows: range | None = None) -> None:
        self._sync(rows, to_device=True)

    def to_host(self, rows: range | None = None) -> None:
        self._sync(rows, to_device=False)

    def _sync(self, rows: range | None, *, to_device: bool) -> None:
        span = None if rows is None else (rows.start, rows.stop)
        self._device.ask(Sync(self.place, to_device, span), still_s_max=SYNC_S_MAX)


class XrtProgram:
    """`run` is for one thread; `cancel` may come from any."""

    def __init__(self, device: "XrtDevice", number: int, loaded: Loaded) -> None:
        self._device, self._number = device, number
        self._inputs = {spec.name: spec for spec in loaded.inputs}
        self._outputs = {spec.name: spec for spec in loaded.outputs}
        self.grid = loaded.grid
        self._running: int | None = None
        self._lock = Lock()

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        return self._inputs

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        return self._outputs

    def run(self, buffers: Mapping[str, Buffer]) -> None:
        number = next(self._device.passes)
        places = tuple(each for buffer in buffers.values() for each in _place(buffer))
        command = Run(self._number, number, tuple(buffers), places)
        with self._lock:
            self._running = number
        try:
            self._device.ask(command, still_s_max=self._device.still_s_max)
        finally:
            with self._lock:
                self._running = None

    def cancel(self) -> None:
        with self._lock:
            if self._running is not None:
                self._device.arena.cancel(self._running)


class XrtDevice:
    """Every method is for one thread."""

    def __init__(
        self,
        name: str,
        *,
        threads: int = 1,
        capacity: int = 0,
        command: Sequence[str] = COMMAND,
        still_s_max: float | None = None,
        say: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`threads`, `capacity`: as Open has them. `say` hears when kernels are built, and
        when another worker has taken over.

        Raises DeviceUnavailable, or DeviceLost for a worker that ends at once.
        """
        self.arena = Arena.create()
        self.passes = itertools.count(1)
        self.still_s_max = STILL_S_MAX[name] if still_s_max is None else still_s_max
        self._opening, self._command = Open(name, threads, capacity), command
        self._say, self._clock = say, clock
        self._numbers = itertools.count(1)
        self._loads: list[Load] = []
        self._allocations: dict[int, Allocate] = {}
        self._unused: deque[int] = deque()  # buffers that nobody has any more
        self._deaths: deque[float] = deque(maxlen=DEATHS_MAX)
        try:
            self._worker: WorkerProcess | None = self._start()
        except FlmError:
            self.arena.close()
            raise

    @property
    def name(self) -> str:
        return self._opening.device

    @property
    def pid(self) -> int | None:
        """The worker's, while there is one."""
        return self._worker.pid if self._worker else None

    def allocate(self, spec: TensorSpec) -> XrtBuffer:
        number, offset = next(self._numbers), self.arena.take(spec)
        allocate = Allocate(number, spec, offset)
        try:
            self.ask(allocate, still_s_max=SYNC_S_MAX)
        except FlmError:
            self.arena.give_back(spec, offset)
            raise
        self._allocations[number] = allocate
        array = self.arena.look(spec, offset)
        # Parts are views of it. Whoever collects it may be another thread, in another command.
        weakref.finalize(array, self._unused.append, number).atexit = False
        return XrtBuffer(self, spec, array, Part(number, 0, spec.shape[0]))

    def load(self, graph: Path) -> XrtProgram:
        if not (graph.parent / KERNELS).exists():
            self._say("Building the model's kernels, once (flm kernels build does so beforehand)")
        load = Load(next(self._numbers), str(graph.absolute()))
        loaded = self.ask(load, still_s_max=LOAD_S_MAX)
        assert isinstance(loaded, Loaded)
        self._loads.append(load)
        return XrtProgram(self, load.program, loaded)

    def close(self) -> None:
        if self._worker:
            self._worker.close()
            self._worker = None
        self.arena.close()

    def ask(self, command: Command, *, still_s_max: float) -> Answer:
        """Raises DeviceLost, and what the worker says has failed."""
        self._worker = worker = self._worker or self._start_again()
        try:
            self._free(worker)
            return _asked(worker, command, still_s_max)
        except DeviceLost as lost:
            worker.kill()
            self._worker = None
            if not isinstance(lost, DeviceFault):
                self._deaths.append(self._clock())
            raise

    def _start(self) -> WorkerProcess:
        """A worker that knows all that the one before it knew."""
        worker = WorkerProcess(self.arena, self._command)
        try:
            _asked(worker, self._opening, OPEN_S_MAX)
            for load in self._loads:
                _asked(worker, load, LOAD_S_MAX)
            for allocate in self._allocations.values():
                _asked(worker, allocate, SYNC_S_MAX)
        except FlmError:
            worker.kill()
            raise
        return worker

    def _start_again(self) -> WorkerProcess:
        now = self._clock()
        if len(self._deaths) == DEATHS_MAX and now - self._deaths[0] < DEATHS_S:
            raise DeviceLost(
                f"The device's process ended {DEATHS_MAX} times in a short while, "
                f"and is not started again for {DEATHS_S - (now - self._deaths[0]):.0f} s",
                fix=FIX,
            )
        try:
            worker = self._start()
        except FlmError as error:
            self._deaths.append(self._clock())
            raise DeviceLost(
                f"The device cannot be opened again: {error.message}", fix=error.fix
            ) from error
        self._say(f"The device is back after {self._clock() - now:.1f} s")
        return worker

    def _free(self, worker: WorkerProcess) -> None:
        while self._unused:
            unused = self._allocations.pop(self._unused.popleft())
            self.arena.give_back(unused.spec, unused.offset)
            worker.tell(Free(unused.buffer))


def _asked(worker: WorkerProcess, command: Command, still_s_max: float) -> Answer:
    answer = worker.ask(command, still_s_max=still_s_max)
    if isinstance(answer, Failed):
        kind = getattr(errors, answer.kind, None)
        if isinstance(kind, type) and issubclass(kind, FlmError):
            raise kind(answer.message, fix=answer.fix)
        raise DeviceLost(f"{answer.kind}: {answer.message}", fix=FIX)
    return answer


def _place(buffer: Buffer) -> tuple[int, int, int]:
    assert isinstance(buffer, XrtBuffer), f"{buffer.spec.name} is not on this device"
    return buffer.place.buffer, buffer.place.start, buffer.place.stop

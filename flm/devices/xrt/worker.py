"""The process that the device runs in: it does what the engine's process says, until that ends.

Only here is pyxrt imported. Whatever goes wrong that is not an FlmError leaves a device nobody can
rely on: the engine's side is told that it is lost, and kills us. What npu_kernels finds wrong with
a kernel, a design or a stream is a mistake of ours and would be found again: a DeviceFault.
"""

import faulthandler
import os
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from flm.core.tensor import TensorSpec
from flm.devices.device import Array
from flm.devices.xrt.arena import Arena
from flm.devices.xrt.messages import (
    MESSAGE_BYTES_MAX,
    Allocate,
    Answer,
    Close,
    Command,
    Done,
    Failed,
    Free,
    Load,
    Loaded,
    Open,
    Part,
    Run,
    Sync,
    decode,
    encode,
)
from flm.errors import DeviceUnavailable, FlmError

SAID_CHARS_MAX = 2000  # of somebody else's error
REPORT = "report it in the project's issues: this message, the model, and what flm version says"


class LocalBuffer(Protocol):
    """As Buffer, but `array`: its host's copy was given to it."""

    def part(self, start: int, stop: int) -> "LocalBuffer": ...

    def to_device(self, rows: range | None = None) -> None: ...

    def to_host(self, rows: range | None = None) -> None: ...


class LocalProgram(Protocol):
    @property
    def inputs(self) -> Mapping[str, TensorSpec]: ...

    @property
    def outputs(self) -> Mapping[str, TensorSpec]: ...

    @property
    def grid(self) -> int: ...

    def run(self, buffers: Mapping[str, Any], go_on: Callable[[], bool]) -> None:
        """`buffers` are the device's own. Asks `go_on` before each dispatch, which is also how it
        shows that it moves; once that is False it raises PassCancelled. DeviceLost for what a
        device does not recover from.
        """
        ...


class Local(Protocol):
    """A device in this process. `close` gives it back once programs and buffers are gone."""

    def allocate(self, spec: TensorSpec, host: Array) -> LocalBuffer: ...

    def load(self, graph: Path) -> LocalProgram: ...

    def close(self) -> None: ...


Opener = Callable[[Open], Local]


class Worker:
    def __init__(self, arena: Arena, opener: Opener) -> None:
        self._arena = arena
        self._opener = opener
        self._local: Local | None = None
        self._buffers: dict[int, LocalBuffer] = {}
        self._programs: dict[int, LocalProgram] = {}

    def answer(self, command: Command) -> Answer | None:
        try:
            return self._do(command)
        except FlmError as error:
            return Failed(type(error).__name__, error.message, error.fix)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"[:SAID_CHARS_MAX]
            if type(error).__module__.startswith("npu_kernels."):
                what = f"What runs on the NPU has a mistake of ours, to be reported: {said}"
                return Failed("DeviceFault", what, REPORT)
            traceback.print_exc()
            return Failed("DeviceLost", f"The device's process failed: {said}", REPORT)

    def _do(self, command: Command) -> Answer | None:
        if isinstance(command, Open):
            self._local = self._opener(command)
            return Done()
        assert self._local is not None, "not open"
        match command:
            case Allocate(number, spec, offset):
                host = self._arena.look(spec, offset)
                self._buffers[number] = self._local.allocate(spec, host)
            case Free(number):
                del self._buffers[number]
                return None
            case Load(number, graph):
                program = self._programs[number] = self._local.load(Path(graph))
                specs = tuple(program.inputs.values()), tuple(program.outputs.values())
                return Loaded(*specs, program.grid)
            case Sync(part, to_device, rows):
                buffer, span = self._part(part), range(*rows) if rows else None
                (buffer.to_device if to_device else buffer.to_host)(span)
            case Run():
                self._run(command)
            case Close():
                self._programs.clear()
                self._buffers.clear()
                self._local.close()
        return Done()

    def _run(self, command: Run) -> None:
        def go_on() -> bool:
            self._arena.beat()
            return self._arena.cancelled != command.number

        buffers = {name: self._part(part) for name, part in command.buffers.items()}
        self._programs[command.program].run(buffers, go_on)

    def _part(self, part: Part) -> LocalBuffer:
        return self._buffers[part.buffer].part(part.start, part.stop)


def open_npu(wanted: Open) -> Local:
    """Raises DeviceUnavailable."""
    from flm.devices.xrt.build import beside
    from flm.devices.xrt.local import NpuDevice
    from flm.devices.xrt.named import module_of, toolchain_of

    try:
        return NpuDevice(
            module_of(wanted.device),
            beside(toolchain_of(wanted.device)),
            threads=wanted.threads,
            capacity=wanted.capacity,
        )
    except (ImportError, RuntimeError) as error:  # what pyxrt raises is a RuntimeError
        raise DeviceUnavailable(
            f"The NPU cannot be opened: {error}", fix="flm validate says what stands in the way"
        ) from error


def main(opener: Opener = open_npu) -> None:
    faulthandler.enable()
    connection = socket.socket(fileno=int(sys.argv[1]))
    worker = Worker(Arena(int(sys.argv[2])), opener)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    while data := connection.recv(MESSAGE_BYTES_MAX):
        command = decode(data)
        assert isinstance(command, Command)
        if answer := worker.answer(command):
            connection.send(encode(answer))
        if isinstance(command, Close):
            break


def _end_with(connection: socket.socket) -> None:
    """Whoever started us has closed its end, or has ended: so do we, whatever we are at."""
    closed = select.poll()
    closed.register(connection, 0)
    closed.poll()
    os._exit(0)


if __name__ == "__main__":
    main()

"""run and runlist."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NoReturn

from npu_kernels.fakexrt.buffers import bo
from npu_kernels.fakexrt.commands import Arguments, Buffer, Command
from npu_kernels.fakexrt.enums import RUNNING, ert_cmd_state
from npu_kernels.fakexrt.faults import Misuse

if TYPE_CHECKING:
    from npu_kernels.fakexrt.contexts import hw_context, kernel

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
CHUNK_RUNS = 24  # of a runlist, to a command
COMPLETED = ert_cmd_state.ERT_CMD_STATE_COMPLETED
NOT_BOUND = "is bound without pybind11/chrono.h and functional.h"


class run:
    def __init__(self, of: kernel | None = None, /) -> None:
        self._kernel = of
        self._arguments: Arguments = {}
        self._state = ert_cmd_state.ERT_CMD_STATE_NEW
        self._command: Command | None = None
        self._list: weakref.ref[runlist] | None = None
        self._looked = False

    def _known(self) -> kernel:
        if self._kernel is None:
            raise Misuse("run() is no run: the real one segfaults")
        return self._kernel

    @property
    def _listed(self) -> bool:
        return self._list is not None and self._list() is not None

    def set_arg(self, index: int, value: bo | int, /) -> None:
        argument = self._known()._argument(index)
        count = len(self._known()._declared.arguments)
        if isinstance(value, bo):
            if argument is None:
                raise Misuse(f"buffer {index} of {count} arguments: the real one segfaults")
            if not argument.buffer:
                raise Misuse(f"argument {index}, {argument.name}, is no buffer")
            storage, start, stop = value._span()
            self._arguments[index] = Buffer(weakref.ref(storage), start, stop)
            return
        if not isinstance(value, int) or not INT_MIN <= value <= INT_MAX:
            raise TypeError("set_arg(): incompatible function arguments")
        if argument is None:
            raise IndexError(f"argument {index} of {count}")
        if argument.buffer:
            what = f"argument {index}, {argument.name}, is a buffer"
            raise Misuse(f"{what}: the real one takes {value} for an address, without a word")
        self._arguments[index] = value

    def start(self) -> None:
        context = self._known()._context
        if self._command is not None:
            raise RuntimeError("bad command state, can't launch")
        if self._listed:
            raise RuntimeError("run object belongs to a runlist and cannot be started explicitly")
        self._submit()
        context._alive().counts.submits += 1

    def _submit(self) -> None:
        self._command = Command(self._known(), dict(self._arguments))
        self._state = ert_cmd_state(RUNNING)
        self._looked = False

    def wait(self, timeout_ms: int = 0, /) -> ert_cmd_state:
        if not isinstance(timeout_ms, int) or timeout_ms < 0:
            raise TypeError("wait(): incompatible function arguments: milliseconds, unsigned")
        self._known()
        if self._listed:
            raise Misuse("this run is in a runlist: wait for the list")
        if self._state is ert_cmd_state.ERT_CMD_STATE_NEW:
            raise Misuse("wait() before start(): nothing is there that could end")
        if self._command is not None:
            if not self._command.ends_within(timeout_ms):
                return ert_cmd_state.ERT_CMD_STATE_TIMEOUT
            self._end(self._command)
        return self._state

    def _end(self, command: Command) -> None:
        command.finish()
        self._state, self._command = command.end, None

    def wait2(self, *timeout: object) -> None:
        if timeout:
            raise TypeError(f"wait2(): incompatible function arguments: it {NOT_BOUND}")
        state = self.wait()
        if state is not COMPLETED:
            raise RuntimeError(f"Command failed to complete successfully ({state.name})")

    def state(self) -> ert_cmd_state:
        """It still runs when it is first looked at."""
        self._known()
        if self._command is not None and self._looked and self._command.ends_within(1):
            self._end(self._command)
        self._looked = True
        return self._state

    def add_callback(self, *arguments: object) -> NoReturn:
        raise TypeError(f"add_callback(): incompatible function arguments: it {NOT_BOUND}")

    def get_ctrl_scratchpad_bo(self) -> NoReturn:
        raise Misuse("only the ELF flow has a scratchpad, and fakexrt has no ELF flow")


class runlist:
    """Submitted in chunks; of its runs only the last one's state is kept up to date."""

    def __init__(self, context: hw_context | None = None, /) -> None:
        self._context = context
        self._runs: list[run] = []
        self._commands: list[Command] | None = None

    def _known(self) -> hw_context:
        if self._context is None:
            raise Misuse("runlist() is no list: give it a hw_context")
        return self._context

    def add(self, one: run, /) -> None:
        context = self._known()
        if self._commands is not None:
            raise RuntimeError("runlist is executing, cannot add")
        if one._known()._context is not context:
            raise Misuse("this run is of another context: the real list takes it all the same")
        if any(other is one for other in self._runs):
            raise Misuse("this run is in the list already: the real list takes it all the same")
        if one._listed:
            raise RuntimeError("run object already belongs to a runlist")
        self._runs.append(one)
        one._list = weakref.ref(self)

    def execute(self) -> None:
        context = self._known()
        if self._commands is not None:
            raise RuntimeError("bad runlist state, can't launch")
        commands: list[Command] = []
        try:
            for one in self._runs:
                commands.append(Command(one._known(), dict(one._arguments)))
                if commands[-1].end is not COMPLETED:
                    break
            if race := _race(commands):
                raise Misuse(f"{race}: runs of one list have raced on hardware")
        except Exception:
            for command in commands:
                command.finish()
            raise
        self._commands = commands
        if self._runs:
            self._runs[-1]._state = ert_cmd_state(RUNNING)
        context._alive().counts.submits += -(-len(self._runs) // CHUNK_RUNS)

    def wait(self, *timeout: object) -> None:
        if timeout:
            raise TypeError(f"wait(): incompatible function arguments: it {NOT_BOUND}")
        self._known()
        if self._commands is None:
            return
        commands, self._commands = self._commands, None
        for command in commands:
            command.ends_within(0)
            command.finish()
        if not commands:
            return
        self._runs[-1]._state = end = commands[-1].end
        if end is not COMPLETED:
            raise RuntimeError(f"runlist failed execution ({end.name})")


def _race(commands: list[Command]) -> str | None:
    """Where one run of a list writes what another touches."""
    for number, command in enumerate(commands):
        for storage, start, stop, written in command.spans:
            for other in commands[:number]:
                for place, begin, end, wrote in other.spans:
                    overlap = place is storage and start < end and begin < stop
                    if overlap and (written or wrote):
                        span = f"bytes {max(start, begin)} to {min(stop, end)} of a buffer"
                        return f"run {number} and one before it meet in {span}"
    return None

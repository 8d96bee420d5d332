"""The worker, as the engine sees it: a process that answers, hangs or ends.

It is started anew, never forked, and lives no longer than we do: it ends when our end of the
socket closes. Waiting for it holds up no other thread.
"""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from flm.devices.xrt.arena import Arena
from flm.devices.xrt.messages import (
    MESSAGE_BYTES_MAX,
    Answer,
    BadMessage,
    Close,
    Command,
    decode,
    encode,
)
from flm.errors import DeviceLost, DeviceUnavailable

COMMAND = (sys.executable, "-P", "-m", "flm.devices.xrt.worker")
CLOSE_S_MAX = 10.0  # for what it holds of the device, given back in order
KILL_S_MAX = 5.0  # a process that is in the driver ends when the driver lets it
FIX = "flm validate says what is wrong with the device; --device cpu goes on without it"


class WorkerProcess:
    """Every method is for one thread. After DeviceLost there is nothing to do but to kill it."""

    def __init__(self, arena: Arena, command: Sequence[str] = COMMAND) -> None:
        """Raises DeviceUnavailable."""
        self._arena = arena
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        try:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(arena.descriptor)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # It finds modules as we do. Threads that spin take their power from the NPU.
                env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PYTHONPATH": paths},
                pass_fds=(theirs.fileno(), arena.descriptor),
                process_group=0,  # what interrupts us at a terminal is for us alone
            )
        except OSError as error:
            self._socket.close()
            raise DeviceUnavailable(f"no process for the device: {error}", fix=FIX) from error
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, command: Command) -> None:
        """Raises DeviceLost."""
        try:
            self._socket.send(encode(command))
        except OSError as error:
            raise DeviceLost(f"The device's process {self._ending()}", fix=FIX) from error

    def ask(self, command: Command, *, still_s_max: float) -> Answer:
        """Its answer. Raises DeviceLost: it has ended, or made no progress for `still_s_max`."""
        self.tell(command)
        answered = select.poll()
        answered.register(self._socket, select.POLLIN)
        beats = self._arena.beats
        while not answered.poll(1000 * still_s_max):
            if beats == (beats := self._arena.beats):
                raise DeviceLost(f"The device has not moved for {still_s_max:g} s", fix=FIX)
        try:
            answer = decode(data) if (data := self._received()) else None
        except BadMessage as error:
            raise DeviceLost(f"The device's process answers wrongly: {error}", fix=FIX) from error
        if not isinstance(answer, Answer):
            raise DeviceLost(f"The device's process {self._ending()}", fix=FIX)
        return answer

    def close(self) -> None:
        """It gives back what it holds of the device, in order, if it still can."""
        with suppress(DeviceLost, subprocess.TimeoutExpired):
            self.ask(Close(), still_s_max=CLOSE_S_MAX)
            self._process.wait(CLOSE_S_MAX)
        self.kill()

    def kill(self) -> None:
        self._socket.close()
        self._process.kill()
        try:
            self._process.wait(KILL_S_MAX)
        except subprocess.TimeoutExpired:  # within the driver: it goes when that lets it
            self._process.returncode = -signal.SIGKILL

    def _received(self) -> bytes:
        """Nothing, once it has ended."""
        try:
            return self._socket.recv(MESSAGE_BYTES_MAX)
        except ConnectionResetError:  # it ended with a command that it had not read
            return b""

    def _ending(self) -> str:
        try:
            status = self._process.wait(KILL_S_MAX)
        except subprocess.TimeoutExpired:
            return "no longer answers"
        if status < 0:
            return f"was ended by signal {-status} ({signal.strsignal(-status)})"
        return f"ended with status {status}"

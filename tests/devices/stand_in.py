"""A worker over the null device: what a device does, in a process that can end, hang or lie.

    python stand_in.py SOCKET ARENA

What a pass does in its middle, once, is said by a file beside the model: `end` kills the process,
`hang` and `lost` are what they say, `fault` is what a simulator finds, `wait` goes on until it is
cancelled, `work` takes a while without letting go of Python's lock.
"""

import ctypes
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from flm.core.tensor import TensorSpec
from flm.devices.device import Array, zeros
from flm.devices.null import NullBuffer, NullDevice, NullProgram
from flm.devices.xrt.messages import Open
from flm.devices.xrt.worker import main
from flm.errors import DeviceLost, DeviceUnavailable, NoRoom
from npu_kernels.aie_host import KernelFault

WORK_S = 2  # a pass that computes


class StandInProgram:
    grid = 1

    def __init__(self, graph: Path) -> None:
        self._trouble = graph.with_name("trouble")
        self._go_on: Callable[[], bool] = lambda: True
        self._program: NullProgram = NullDevice(self._during).load(graph)
        self.inputs, self.outputs = self._program.inputs, self._program.outputs

    def run(self, buffers: Mapping[str, NullBuffer], go_on: Callable[[], bool]) -> None:
        self._go_on = go_on
        self._program.run(buffers)

    def _during(self) -> None:
        try:
            trouble = self._trouble.read_text()
        except FileNotFoundError:
            trouble = ""
        self._trouble.unlink(missing_ok=True)
        if trouble == "work":
            ctypes.PyDLL(None).sleep(WORK_S)  # PyDLL: Python's lock stays held
        if trouble == "end":
            os.kill(os.getpid(), signal.SIGKILL)
        if trouble == "hang":
            signal.pause()
        if trouble == "lost":
            raise DeviceLost("the array did not end: TIMEOUT", fix="flm validate")
        if trouble == "fault":
            raise KernelFault("qlinear: lane or part 16 of 16")
        if trouble == "wait":
            while self._go_on():
                pass
        if not self._go_on():
            self._program.cancel()


class StandIn:
    def allocate(self, spec: TensorSpec, host: Array) -> NullBuffer:
        if spec.name == "too much":
            raise NoRoom("no memory for that", fix="ask for less")
        return NullBuffer(spec, host, zeros(spec))

    def load(self, graph: Path) -> StandInProgram:
        return StandInProgram(graph)

    def close(self) -> None:
        """Nothing is held outside Python."""


def opener(wanted: Open) -> StandIn:
    if wanted.threads == 0:
        raise DeviceUnavailable("there is no such device", fix="buy one")
    return StandIn()


if __name__ == "__main__":
    main(opener)

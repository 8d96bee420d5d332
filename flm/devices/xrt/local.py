"""The NPU, in the process that talks to it: pyxrt's API below, the real module's or fakexrt's."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from flm.core.tensor import TensorSpec
from flm.devices.device import Array
from flm.devices.xrt.memory import NpuBuffer
from flm.devices.xrt.package import Packages
from flm.devices.xrt.program import NpuProgram


class NpuDevice:
    def __init__(
        self, pyxrt: ModuleType, packages: Packages, *, threads: int, capacity: int
    ) -> None:
        """`threads`: for what no kernel computes. `capacity`: rows that a lane may hold. Raises
        pyxrt's own RuntimeError where there is no NPU.
        """
        self._xrt, self._threads, self._capacity = pyxrt, threads, capacity
        self._packages = packages
        self._device = pyxrt.device(0)
        self._programs: list[NpuProgram] = []

    def allocate(self, spec: TensorSpec, host: Array) -> NpuBuffer:
        """`host`: where the host's copy is, zeroed."""
        return NpuBuffer(spec, host)

    def load(self, graph: Path) -> NpuProgram:
        program = NpuProgram(
            self._xrt,
            self._device,
            graph,
            self._packages,
            threads=self._threads,
            capacity=self._capacity,
        )
        self._programs.append(program)
        return program

    def close(self) -> None:
        while self._programs:
            self._programs.pop().close()
        del self._device

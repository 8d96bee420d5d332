"""The NPU, in the process that talks to it: pyxrt's API below, the real module's or fakexrt's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

from flm.core.tensor import TensorSpec
from flm.devices.device import Array
from flm.devices.xrt.build import ensure
from flm.devices.xrt.memory import NpuBuffer
from flm.devices.xrt.package import KERNELS, Package, Wanted
from flm.devices.xrt.program import NpuProgram
from flm.devices.xrt.ready import Packages
from flm.devices.xrt.toolchains import MlirAie, Simulator


class NpuDevice:
    def __init__(
        self, pyxrt: ModuleType, *, threads: int, capacity: int, packages: Packages | None = None
    ) -> None:
        """`threads`: for what no kernel computes. `capacity`: rows that a lane may hold. Without
        `packages` it looks in the model's folder, and makes what is missing there if it can. Raises
        pyxrt's own RuntimeError where there is no NPU.
        """
        self._xrt, self._threads, self._capacity = pyxrt, threads, capacity
        self._packages = packages or partial(_beside, pyxrt)
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


def _beside(pyxrt: ModuleType, graph: Path, wanted: Sequence[Wanted]) -> Package:
    simulated = pyxrt.__name__ == "npu_kernels.fakexrt"
    return ensure(wanted, graph.parent / KERNELS, Simulator() if simulated else MlirAie())

"""A package, opened: its kernels, their instructions on the device, and runs of them.

A kernel's instructions lie in one buffer that all its runs share; what changes from token to token
is patched there, and only the lines that changed are synced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from flm.devices.xrt.buffers import LINE_BYTES, Bank, Root, Span
from flm.devices.xrt.package import SCALARS, KernelEntry, Package, Wanted
from flm.errors import DeviceLost

DPU = 3  # the opcode of a run that has an instruction stream
PATIENCE_MS = 20_000  # the driver gives up after some 6 s
COMPLETED = 4  # an ert_cmd_state; that of a running one has no name
LINE_WORDS = LINE_BYTES // 4


class Kernel:
    def __init__(
        self, xrt: ModuleType, handle: Any, entry: KernelEntry, instructions: Span
    ) -> None:
        self.entry, self._xrt, self._handle, self._instructions = entry, xrt, handle, instructions
        self._words = instructions.array.view(np.uint32)
        self._values: Mapping[str, int] = {}
        self._words[:] = entry.instructions
        instructions.to_device()

    def at(self, values: Mapping[str, int]) -> None:
        """Runs that start from now on are at these values."""
        if values == self._values:
            return
        self._values = dict(values)
        words = self.entry.words(**values)
        lines = np.unique(np.flatnonzero(words != self._words) // LINE_WORDS)
        self._words[:] = words
        for first, last in _stretches(lines):
            start, end = first * LINE_BYTES, (last + 1) * LINE_BYTES
            self._instructions.to_device(start, min(end, self._instructions.nbytes) - start)

    def run(self, spans: Sequence[Span]) -> Run:
        """One that can be started again and again. Each span has room for what the kernel moves."""
        arguments = self.entry.arguments
        assert len(spans) == len(arguments), (self.entry.name, len(spans))
        for span, argument in zip(spans, arguments, strict=True):
            assert span.nbytes >= argument.nbytes or argument.direction == "memory", argument
        run = self._xrt.run(self._handle)
        run.set_arg(0, DPU)
        run.set_arg(1, self._instructions.handle)
        run.set_arg(2, self._instructions.nbytes)
        for number, span in enumerate(spans):
            run.set_arg(SCALARS + number, span.handle)
        return Run(run, self.entry.name, [self._instructions, *spans])


class Run:
    def __init__(self, handle: Any, name: str, spans: list[Span]) -> None:
        self._handle, self._name = handle, name
        self._spans = spans  # pyxrt keeps addresses only

    def __call__(self) -> None:
        self._handle.start()
        state = self._handle.wait(PATIENCE_MS)
        if int(state) != COMPLETED:
            raise DeviceLost(
                f"the NPU's kernel {self._name} ended as {state}",
                fix="dmesg | grep amdxdna says why; flm validate looks at the rest",
            )


class Kernels:
    """Of one package, in one context."""

    def __init__(self, xrt: ModuleType, device: Any, package: Package) -> None:
        self._xrt = xrt
        uuid = device.register_xclbin(xrt.xclbin(str(package.xclbin)))
        self._context = xrt.hw_context(device, uuid)
        self._kernels: dict[str, Kernel] = {}
        self._package = package
        first = xrt.kernel(self._context, package.kernels[0].name)
        flags = xrt.bo.flags
        self.data = Bank(xrt, device, flags.host_only, first.group_id(SCALARS))
        self._instructions = Bank(xrt, device, flags.cacheable, first.group_id(1))

    def kernel(self, wanted: Wanted) -> Kernel:
        entry = self._package.kernel(wanted.folder, wanted.design, wanted.parameters)
        if entry.name not in self._kernels:
            handle = self._xrt.kernel(self._context, entry.name)
            nbytes = entry.instructions.nbytes
            span = Root(self._instructions, nbytes).span(0, nbytes)
            self._kernels[entry.name] = Kernel(self._xrt, handle, entry, span)
        return self._kernels[entry.name]

    def close(self) -> None:
        """Once no run is left: kernels, buffers, then the context."""
        self._kernels.clear()
        del self._context


def _stretches(lines: Any) -> list[tuple[int, int]]:
    """First and last of each run of adjacent numbers, which rise."""
    found: list[tuple[int, int]] = []
    for line in lines.tolist():
        if found and found[-1][1] + 1 == line:
            found[-1] = found[-1][0], line
        else:
            found.append((line, line))
    return found

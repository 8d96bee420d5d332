"""An NPU's stack, opened: a loop-back package on fakexrt, or a compiled one on the real module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import numpy as np

from npu_kernels.fakexrt import Simulated
from npu_kernels.txn import Operation, Words, encode
from npu_kernels.xclbin import write
from tests.kernels.txn_streams import copy

IDENTITY = UUID("38668b23-339b-4deb-a254-5b95c75af8d3")
LOOPBACK = "npu_kernels.fakexrt.loopback"
KERNEL = "MLIR_AIE"
BYTES = 4096


@dataclass(frozen=True)
class Package:
    xclbin: Path
    instructions: Words  # copies BYTES from the first buffer to the second


def loopback(folder: Path, *, words: int = 4096, identity: UUID = IDENTITY) -> Package:
    path = folder / f"{identity}.xclbin"
    image = Simulated(LOOPBACK, {"words": words}).image()
    path.write_bytes(write(image, identity, columns=8))
    return Package(path, encode(copy(BYTES // 4)))


class Npu:
    """What every program sets up, and buffers that are dropped after what uses them."""

    def __init__(self, xrt: ModuleType, package: Package, kernel: str = KERNEL) -> None:
        self.xrt, self.package = xrt, package
        self.device = xrt.device(0)
        self.uuid = self.device.register_xclbin(xrt.xclbin(str(package.xclbin)))
        self.context = xrt.hw_context(self.device, self.uuid)
        self.kernel = xrt.kernel(self.context, kernel)
        self.to_device = xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
        self.from_device = xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
        self.instructions = self.stream(package.instructions)

    def stream(self, what: Words | Sequence[Operation]) -> Any:
        """An instruction buffer, synced."""
        words = what if isinstance(what, np.ndarray) else encode(what)
        flags = self.xrt.bo.flags.cacheable
        buffer = self.xrt.bo(self.device, words.nbytes, flags, self.kernel.group_id(1))
        buffer.write(words, 0)
        buffer.sync(self.to_device)
        return buffer

    def buffer(self, content: bytes | int, argument: int = 3) -> Any:
        """A data buffer with the content synced, or of so many bytes and never synced."""
        size = content if isinstance(content, int) else len(content)
        flags = self.xrt.bo.flags.host_only
        buffer = self.xrt.bo(self.device, size, flags, self.kernel.group_id(argument))
        if isinstance(content, bytes):
            buffer.write(content, 0)
            buffer.sync(self.to_device)
        return buffer

    def run(self, *buffers: Any, instructions: Any = None) -> Any:
        instructions = instructions or self.instructions
        run = self.xrt.run(self.kernel)
        run.set_arg(0, 3)
        run.set_arg(1, instructions)
        run.set_arg(2, instructions.size())
        for index, buffer in enumerate(buffers):
            run.set_arg(3 + index, buffer)
        return run

    def seen(self, buffer: Any) -> bytes:
        """What the device left in it."""
        buffer.sync(self.from_device)
        return bytes(buffer.map())

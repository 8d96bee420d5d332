"""Buffer objects: the host's view and the device's are two copies; only sync copies between them.

What was never synced does not pass for data: the device sees 0xCD. A view that outlives its buffer
sees 0xA5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np

from npu_kernels.fakexrt.enums import buffer_flags, xclBOSyncDirection
from npu_kernels.fakexrt.faults import Misuse
from npu_kernels.fakexrt.machine import Machine

if TYPE_CHECKING:
    from npu_kernels.fakexrt.contexts import hw_context
    from npu_kernels.fakexrt.devices import device

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
NEVER_SYNCED, FREED = 0xCD, 0xA5
ALIGNMENT = 4096


class Storage:
    """The memory of a root buffer."""

    def __init__(self, machine: Machine, nbytes: int, flags: buffer_flags) -> None:
        self.machine, self.nbytes, self.flags = machine, nbytes, flags
        self.running: list[tuple[int, int]] = []  # spans that started runs use
        self.host = _aligned(nbytes)
        self.device = np.full(nbytes, NEVER_SYNCED, np.uint8)
        if flags is buffer_flags.cacheable:
            self.address = machine.from_heap(nbytes)
        else:
            machine.pin(nbytes)
            self.address = self.host.ctypes.data

    def __del__(self) -> None:
        if not hasattr(self, "address"):
            return  # it was refused
        if self.flags is buffer_flags.cacheable:
            self.machine.heap_used -= self.nbytes
        else:
            self.machine.pinned_bytes -= self.nbytes
        self.host.fill(FREED)

    def busy(self, start: int, stop: int) -> bool:
        return any(start < end and begin < stop for begin, end in self.running)


def _aligned(nbytes: int) -> Bytes:
    """Pages begin where pages begin."""
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


class bo:
    flags = buffer_flags

    @overload
    def __init__(
        self, where: device | hw_context, size: int, flags: buffer_flags, group: int, /
    ) -> None: ...
    @overload
    def __init__(self, where: hw_context, size: int, group: int, /) -> None: ...
    @overload
    def __init__(self, parent: bo, size: int, offset: int, /) -> None: ...

    def __init__(self, first: Any, size: int, *rest: Any) -> None:
        if isinstance(first, bo):
            (offset,) = rest
            self._part_of(first, size, offset)
            return
        flags = rest[0] if len(rest) == 2 else buffer_flags.normal
        if not isinstance(flags, buffer_flags) or not isinstance(rest[-1], int):
            raise TypeError("__init__(): incompatible constructor arguments")
        machine: Machine = first._alive()
        if flags is buffer_flags.normal:
            raise RuntimeError("unsupported buffer type: none flag (err=95): Not supported")
        if flags not in (buffer_flags.cacheable, buffer_flags.host_only):
            raise RuntimeError("Bad BO type. (err=22): Invalid argument")
        if size < 1:
            raise RuntimeError("DRM_IOCTL_AMDXDNA_CREATE_BO IOCTL failed (err=22)")
        self._storage = Storage(machine, size, flags)
        self._parent: bo | None = None
        self._offset, self._size = 0, size

    def _part_of(self, parent: bo, size: int, offset: int) -> None:
        if parent._parent is not None:
            reason = "the device's address of a part of a part loses an offset, the host's does not"
            raise Misuse(f"{reason}: take parts of the root only")
        if size < 1 or offset < 0 or offset + size > parent._size:
            what = f"[{offset}, {offset + size}) of {parent._size} bytes"
            raise RuntimeError(f"invalid sub-buffer: {what}")
        self._storage, self._parent = parent._storage, parent
        self._offset, self._size = offset, size

    # pyxrt

    def size(self) -> int:
        return self._size

    def address(self) -> int:
        return self._storage.address + self._offset

    def map(self) -> memoryview:
        return self._storage.host[self._offset : self._offset + self._size].data

    def write(self, data: Any, seek: int, /) -> None:
        view = memoryview(data).cast("B")
        if seek < 0 or seek + len(view) > self._size:
            raise RuntimeError("attempting to write past buffer size")
        self.map()[seek : seek + len(view)] = view

    def read(self, size: int, skip: int, /) -> Any:
        raise Misuse(
            "read() gives garbage with the pybind11 of most distributions and numpy 2: "
            "use numpy.frombuffer(bo.map(), ...)"
        )

    @overload
    def sync(self, direction: xclBOSyncDirection, /) -> None: ...
    @overload
    def sync(self, direction: xclBOSyncDirection, size: int, offset: int, /) -> None: ...

    def sync(self, direction: xclBOSyncDirection, *span: int) -> None:
        size, offset = span if span else (self._size, 0)
        if not isinstance(direction, xclBOSyncDirection):
            raise TypeError("sync(): incompatible function arguments")
        if size < 0 or offset < 0 or offset + size > self._size:
            raise RuntimeError(f"attempting to sync past buffer size: {offset} + {size}")
        start, stop = self._offset + offset, self._offset + offset + size
        storage = self._storage
        if storage.busy(start, stop):
            raise Misuse("a started run uses these bytes: what either side sees is a race; wait()")
        if direction is xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE:
            storage.device[start:stop] = storage.host[start:stop]
        elif direction is xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE:
            storage.host[start:stop] = storage.device[start:stop]
        else:
            raise Misuse(f"{direction} is for Versal")
        storage.machine.counts.bytes_synced += size

    # what runs need

    def _span(self) -> tuple[Storage, int, int]:
        return self._storage, self._offset, self._offset + self._size

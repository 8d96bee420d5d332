"""Memory that engine and worker both see: one file without a name, of which nothing is left when
both have ended, however they did. A page costs nothing until it is touched.

Its first page holds how far a pass is, and which is to end. The engine gives out the rest, and
takes it back; the worker looks at what it is told of.
"""

import mmap
import os
from collections import defaultdict
from math import prod

import numpy as np

from flm.core.tensor import TensorSpec
from flm.devices.device import Array
from flm.errors import DeviceUnavailable

ARENA_BYTES = 2**40  # of addresses: what is given back is only used again for as much


class Arena:
    def __init__(self, descriptor: int) -> None:
        try:
            self._memory = mmap.mmap(descriptor, ARENA_BYTES)
        except OSError as error:
            raise DeviceUnavailable(
                f"the system gives no addresses to share with the device's process: {error}",
                fix="lift the limit on them: ulimit -v unlimited",
            ) from error
        self.descriptor = descriptor
        self._signals: Array = np.ndarray(2, np.int64, self._memory)
        self._end = mmap.PAGESIZE
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # offsets by size

    @classmethod
    def create(cls) -> "Arena":
        descriptor = os.memfd_create("flm", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, ARENA_BYTES)
        return cls(descriptor)

    @property
    def beats(self) -> int:
        """Rises while a pass makes progress."""
        return int(self._signals[0])

    def beat(self) -> None:
        self._signals[0] += 1

    @property
    def cancelled(self) -> int:
        """The number of the pass that is to end."""
        return int(self._signals[1])

    def cancel(self, number: int) -> None:
        self._signals[1] = number

    def take(self, spec: TensorSpec) -> int:
        """The offset of zeros, to look at."""
        size = _size(spec)
        if self._free[size]:
            return self._free[size].pop()
        offset, self._end = self._end, self._end + size
        assert self._end <= ARENA_BYTES, "the arena is full"
        return offset

    def give_back(self, spec: TensorSpec, offset: int) -> None:
        """What was taken, and nobody looks at any more."""
        size = _size(spec)
        self._memory.madvise(mmap.MADV_REMOVE, offset, size)  # zeros again, and no memory
        self._free[size].append(offset)

    def look(self, spec: TensorSpec, offset: int) -> Array:
        """What lies there. All views of it keep it alive."""
        assert mmap.PAGESIZE <= offset <= ARENA_BYTES - _size(spec), f"{spec} at {offset}"
        return np.ndarray(spec.shape, spec.dtype, self._memory, offset)

    def close(self) -> None:
        """Arrays stay valid: the memory goes with the last of them."""
        os.close(self.descriptor)


def _size(spec: TensorSpec) -> int:
    """In whole pages."""
    nbytes = max(1, prod(spec.shape)) * np.dtype(spec.dtype).itemsize
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE

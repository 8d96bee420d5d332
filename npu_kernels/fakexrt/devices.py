"""device, xclbin, uuid."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from npu_kernels.fakexrt.enums import xrt_info_device
from npu_kernels.fakexrt.faults import Misuse
from npu_kernels.fakexrt.machine import Machine, current
from npu_kernels.xclbin import Kernel, Memory, Xclbin, XclbinFault, read


def enumerate_devices() -> int:
    return current().devices


class uuid:
    def __init__(self, text: str, /) -> None:
        try:
            self._uuid = UUID(text)
        except ValueError:
            self._uuid = UUID(int=0)  # uuid_parse fails, and nobody looks

    def to_string(self) -> str:
        return str(self._uuid)


class xclbin:
    class xclbinkernel:
        def __init__(self, kernel: Kernel | None = None) -> None:
            self._kernel = kernel

        def _known(self) -> Kernel:
            if self._kernel is None:
                raise Misuse("an empty xclbinkernel: take those of xclbin.get_kernels()")
            return self._kernel

        def get_name(self) -> str:
            return self._known().name

        def get_num_args(self) -> int:
            return len(self._known().arguments)

    class xclbinmem:
        def __init__(self, memory: Memory, index: int) -> None:
            self._memory, self._index = memory, index

        def get_tag(self) -> str:
            return self._memory.tag

        def get_base_address(self) -> int:
            return self._memory.base

        def get_size_kb(self) -> int:
            return self._memory.size_kb

        def get_used(self) -> bool:
            return self._memory.used

        def get_index(self) -> int:
            return self._index

    def __init__(self, path: str, /) -> None:
        if not isinstance(path, str):
            raise TypeError("__init__(): incompatible constructor arguments: a str")
        try:
            self._content: Xclbin = read(Path(path).read_bytes())
        except (OSError, XclbinFault) as fault:
            raise RuntimeError(f"{path}: {fault}") from None

    def get_kernels(self) -> list[xclbinkernel]:
        return [self.xclbinkernel(kernel) for kernel in self._content.kernels]

    def get_uuid(self) -> uuid:
        return uuid(str(self._content.uuid))

    def get_mems(self) -> list[xclbinmem]:
        return [self.xclbinmem(memory, n) for n, memory in enumerate(self._content.memories)]

    def get_xsa_name(self) -> str:
        return ""

    def get_axlf(self) -> object:
        raise Misuse("get_axlf() gives a bare pointer: nothing in Python can use it")


class device:
    def __init__(self, which: int | str | None = None, /) -> None:
        self._machine: Machine | None = None
        machine = current()
        if which is None:
            return
        found = which == machine.bdf if isinstance(which, str) else which < machine.devices
        if not machine.devices or not found:
            raise RuntimeError(f"No such device with index '{which}'")
        self._machine = machine

    def _alive(self) -> Machine:
        if self._machine is None:
            raise Misuse("device() is no device: give it an index or a bdf")
        return self._machine

    def register_xclbin(self, what: xclbin, /) -> uuid:
        if not isinstance(what, xclbin):
            raise TypeError("register_xclbin(): incompatible function arguments: an xclbin")
        self._alive().registered[what._content.uuid] = what._content
        return what.get_uuid()

    def load_xclbin(self, what: xclbin | str, /) -> uuid:
        raise Misuse("load_xclbin() is not for NPUs: register_xclbin(), then a hw_context")

    def get_xclbin_uuid(self) -> uuid:
        raise Misuse("no xclbin is ever loaded on an NPU's device: ask the hw_context")

    def get_info(self, key: xrt_info_device, /) -> str:
        if not isinstance(key, xrt_info_device):
            raise TypeError("get_info(): incompatible function arguments: an xrt_info_device")
        return self._alive().info(_names[int(key)])


_names = {int(member): name for name, member in xrt_info_device.__members__.items()}

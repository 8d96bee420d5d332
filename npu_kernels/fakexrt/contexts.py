"""hw_context and kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_kernels.fakexrt.array import Array
from npu_kernels.fakexrt.buffers import bo
from npu_kernels.fakexrt.configuration import Simulated
from npu_kernels.fakexrt.devices import device, uuid, xclbin
from npu_kernels.fakexrt.enums import context_mode
from npu_kernels.fakexrt.faults import Misuse
from npu_kernels.fakexrt.machine import Machine
from npu_kernels.fakexrt.runs import run
from npu_kernels.xclbin import Kernel, Xclbin
from npu_kernels.xclbin.read import Argument

NO_GROUP = 0x1FFFF
GROUP_BASE = 0x10000


class hw_context:
    access_mode = context_mode

    def __init__(self, *arguments: Any) -> None:
        self._machine: Machine | None = None
        if not arguments:
            return
        where, *rest = arguments
        if not isinstance(where, device) or not rest:
            raise TypeError("__init__(): incompatible constructor arguments")
        self._device, machine = where, where._alive()
        self._content = _content(machine, rest[0])
        self._mode = _mode(rest[1:])
        if self._content.partition.columns > machine.model.geometry.columns:
            raise RuntimeError("DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed (err=22)")
        self._simulated = {
            number: Simulated.of(pdi.image)
            for pdi in self._content.partition.pdis
            for number in pdi.kernel_ids
        }
        self._number = machine.open_context()
        self._machine = machine
        self._array: Array | None = None
        self._dead: str | None = None

    def _alive(self) -> Machine:
        if self._machine is None:
            raise Misuse("hw_context() is no context: give it a device and a uuid")
        return self._machine

    def __del__(self) -> None:
        if self._machine is not None:
            self._unload()
            self._machine.close_context(self._number)

    def _loaded(self, kernel: int) -> Array:
        """The array, configured anew if another context or kernel had it: its state is lost."""
        machine = self._alive()
        if machine.switch(self._number, kernel) or self._array is None:
            self._unload()
            self._array = machine.configure(self._simulated[kernel])
        return self._array

    def _unload(self) -> None:
        if self._array is not None:
            self._array.close()
        self._array = None

    def _die(self, why: str) -> None:
        machine = self._alive()
        self._dead = why
        self._unload()
        machine.forget(self._number)
        machine.journal.append(f"AIE2_TDR_WORK: {why}; AIE2_DUMP_CTX {self._number}")

    def get_device(self) -> device:
        self._alive()
        return self._device

    def get_xclbin_uuid(self) -> uuid:
        self._alive()
        return uuid(str(self._content.uuid))

    def get_xclbin(self) -> xclbin:
        self._alive()
        found = object.__new__(xclbin)
        found._content = self._content
        return found

    def get_mode(self) -> context_mode:
        self._alive()
        return self._mode

    def add_config(self, elf: object) -> None:
        raise Misuse("fakexrt has no ELF flow")


def _content(machine: Machine, what: object) -> Xclbin:
    if isinstance(what, str):
        what = xclbin(what)
    if isinstance(what, xclbin):
        machine.registered[what._content.uuid] = what._content
        return what._content
    if not isinstance(what, uuid):
        raise TypeError("__init__(): incompatible constructor arguments: a uuid, xclbin or path")
    if what._uuid not in machine.registered:
        raise RuntimeError(f"No xclbin with uuid '{what.to_string()}'")
    return machine.registered[what._uuid]


def _mode(rest: list[Any]) -> context_mode:
    if not rest or isinstance(rest[0], Mapping):
        return context_mode.shared
    if len(rest) > 1 or not isinstance(rest[0], context_mode):
        raise TypeError("__init__(): incompatible constructor arguments")
    return rest[0]


class kernel:
    def __init__(self, context: hw_context, name: str, *rest: object) -> None:
        if isinstance(context, device):
            raise Misuse("kernel(device, uuid, name) is not for NPUs: kernel(hw_context, name)")
        if not isinstance(context, hw_context) or rest:
            raise TypeError("__init__(): incompatible constructor arguments")
        context._alive()
        found = context._content.kernel(name)
        if found is None or found.number not in context._simulated:
            raise RuntimeError(f"No such kernel '{name}'")
        self._context, self._declared = context, found

    def _argument(self, index: int) -> Argument | None:
        declared: Kernel = self._declared
        return next((found for found in declared.arguments if found.index == index), None)

    def group_id(self, index: int, /) -> int:
        argument = self._argument(index)
        if argument is None:
            count = len(self._declared.arguments)
            raise Misuse(f"group_id({index}) of {count} arguments: the real one says {NO_GROUP}")
        if not argument.buffer:
            return NO_GROUP
        banks = dict(self._context._content.banks)
        return GROUP_BASE + banks[index] if index in banks else NO_GROUP

    def __call__(self, *arguments: bo | int) -> run:
        if len(arguments) > len(self._declared.arguments):
            what = f"{len(arguments)} arguments of {len(self._declared.arguments)}"
            raise Misuse(f"{what}: the real one segfaults")
        new = run(self)
        for index, argument in enumerate(arguments):
            if not isinstance(argument, bo | int):
                what = f"argument {index} is a {type(argument).__name__}"
                raise Misuse(f"{what}: the real one skips it without a word")
            new.set_arg(index, argument)
        new.start()
        return new

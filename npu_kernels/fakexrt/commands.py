"""A run as it is submitted: its arguments looked at, its stream checked, then executed."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npu_kernels.fakexrt.array import Outcome, execute
from npu_kernels.fakexrt.buffers import Storage
from npu_kernels.fakexrt.enums import buffer_flags, ert_cmd_state
from npu_kernels.fakexrt.faults import Fault, Misuse
from npu_kernels.txn import StreamFault, Words, check_words, parse

if TYPE_CHECKING:
    from npu_kernels.fakexrt.contexts import kernel

DPU = 3  # the opcode of a run with an instruction stream
HEADER_BYTES = 16
ENDS = {
    Fault.ERROR: ert_cmd_state.ERT_CMD_STATE_ERROR,
    Fault.ABORT: ert_cmd_state.ERT_CMD_STATE_ABORT,
    Fault.TIMEOUT: ert_cmd_state.ERT_CMD_STATE_TIMEOUT,
}
DEADLY = (Fault.ABORT, Fault.TIMEOUT)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer as an argument: pyxrt keeps its address, not the buffer."""

    storage: weakref.ref[Storage]
    start: int
    stop: int

    def memory(self, index: int) -> Storage:
        storage = self.storage()
        if storage is None:
            raise Misuse(f"argument {index}'s buffer is gone: the NPU would use freed memory")
        return storage


Arguments = dict[int, "int | Buffer"]


class Command:
    """Executed as it is submitted; its end shows when somebody waits for it."""

    def __init__(self, of: kernel, arguments: Arguments) -> None:
        context, self._kernel = of._context, of._declared
        if context._dead:
            raise Misuse(f"this context died ({context._dead}): make the context anew")
        self._context, self._machine = context, context._alive()
        self._arguments = arguments
        self.spans: list[tuple[Storage, int, int, bool]] = []  # bytes, and whether written
        self._fault = self._machine.take_fault()
        if self._fault is Fault.CRASH:
            os.kill(os.getpid(), signal.SIGSEGV)
        self._machine.counts.runs += 1
        self.end = self._executed()
        for storage, start, stop, _ in self.spans:
            storage.running.append((start, stop))

    def ends_within(self, patience_ms: int) -> bool:
        """Whether a host that waits so long sees the end; 0 waits for ever."""
        if self._fault is Fault.HANG:
            threading.Event().wait()
        slow = self._fault is Fault.SLOW and patience_ms > 0
        if slow:
            self._fault = None
        return not slow

    def finish(self) -> None:
        for storage, start, stop, _ in self.spans:
            storage.running.remove((start, stop))
        self.spans = []

    def _executed(self) -> ert_cmd_state:
        words = self._instructions()
        buffers = self._buffers()
        sizes = [stop - start for _, start, stop in buffers]
        if self._fault in ENDS:
            self.spans += [(*span, True) for span in buffers]
            if self._fault in DEADLY:
                self._context._die(self._fault.value)
            return ENDS[self._fault]
        try:
            check_words(words, self._machine.model.geometry, sizes, self._machine.allow)
            outcome = self._execute(words, buffers)
        except StreamFault as fault:
            raise Misuse(f"the stream breaks a rule: {fault}") from fault
        return self._ended(outcome, buffers)

    def _execute(self, words: Words, buffers: list[tuple[Storage, int, int]]) -> Outcome:
        """What a fault leaves of the array is not used again."""
        views = [_words(storage, start, stop) for storage, start, stop in buffers]
        array = self._context._loaded(self._kernel.number)
        try:
            return execute(parse(words), self._machine.model.geometry, array, views)
        except Exception as fault:
            self._context._die(str(fault))
            raise

    def _ended(self, outcome: Outcome, buffers: list[tuple[Storage, int, int]]) -> ert_cmd_state:
        counts = self._machine.counts
        counts.bytes_read += outcome.bytes_read
        counts.bytes_written += outcome.bytes_written
        for touched in outcome.touched:
            storage, start, _ = buffers[touched.argument]
            span = (start + touched.start, start + touched.stop)
            self.spans.append((storage, *span, touched.written))
        if outcome.standstill is None:
            return ert_cmd_state.ERT_CMD_STATE_COMPLETED
        self._context._die(outcome.standstill)
        return ert_cmd_state.ERT_CMD_STATE_TIMEOUT

    def _instructions(self) -> Words:
        opcode, buffer, nbytes = (self._arguments.get(index) for index in range(3))
        if opcode != DPU:
            raise Misuse(f"argument 0 is {opcode}: {DPU} runs an instruction stream")
        if not isinstance(buffer, Buffer) or not isinstance(nbytes, int):
            raise Misuse("arguments 1 and 2 are the instructions and their bytes: set both")
        storage = buffer.memory(1)
        if storage.flags is not buffer_flags.cacheable:
            raise Misuse("instructions belong in a cacheable buffer: the firmware's own heap")
        self.spans.append((storage, buffer.start, buffer.stop, False))
        data = storage.device[buffer.start : buffer.stop]
        if nbytes % 4 or not HEADER_BYTES <= nbytes <= len(data):
            what = f"argument 2 is {nbytes}, of a buffer of {len(data)} bytes"
            raise Misuse(f"{what}: does it count words?")
        words = np.array(data[:nbytes]).view(np.uint32)
        if words[3] != nbytes:
            what = f"the stream that the device sees has {words[3]} bytes, argument 2 says {nbytes}"
            raise Misuse(f"{what}: was it synced? does it count words?")
        return words

    def _buffers(self) -> list[tuple[Storage, int, int]]:
        """Those that are set, from argument 3 on without a gap."""
        found: list[tuple[Storage, int, int]] = []
        for index in sorted(self._arguments)[3:]:
            buffer = self._arguments[index]
            if index != 3 + len(found) or not isinstance(buffer, Buffer):
                raise Misuse(f"argument {3 + len(found)} is not set; argument {index} is")
            storage = buffer.memory(index)
            if storage.flags is not buffer_flags.host_only:
                raise Misuse(f"argument {index} is not host_only: data is not for the heap")
            if (storage.address + buffer.start) % 4:
                raise Misuse(f"argument {index} is at an address that no DMA can say")
            found.append((storage, buffer.start, buffer.stop))
        return found


def _words(storage: Storage, start: int, stop: int) -> Words:
    whole = (stop - start) // 4 * 4
    return storage.device[start : start + whole].view(np.uint32)

"""A stand-in for pyxrt (XRT 2.26) on an NPU: its names and signatures, and no mercy.

    from npu_kernels import fakexrt as pyxrt

Where the real module does something harmless, this one does the same. Where it segfaults, ignores a
mistake or does something else than asked, this one raises a Misuse with the reason. (A star: what
the real module does there was not measured; take it that nothing good comes of it.)

    real pyxrt                                                  here
    ----------------------------------------------------------  ------------------------------------
    no device: RuntimeError "No such device with index '0'"     the same (Machine(devices=0))
    hw_context before register_xclbin, unknown kernel           the same RuntimeError
    group_id of a scalar 131071, instructions 65537, data 65536 the same
    group_id out of range: 131071                               Misuse
    flags but host_only and cacheable, size 0: RuntimeError     the same
    cacheable: 64 MiB at 0x04000000, grows to 512 MiB           the same; full: RuntimeError
    part of a buffer: any offset; out of bounds: RuntimeError   the same; no word address: Misuse
    part of a part: the device's address is wrong               Misuse
    a view that outlives its buffer: segfault                   it sees 0xA5 bytes
    bo.read(): garbage with common pybind11 and numpy           Misuse
    a forgotten sync: whatever the caches hold                  the device sees 0xCD, the host old
  * sync while a run uses the bytes                             Misuse
    set_arg(i, bo), i too large; too many in a call: segfault   Misuse
    set_arg(i, int) over 32 bits: TypeError; i too large:       the same
      IndexError
    set_arg(i, int) where a buffer belongs, and a call's        Misuse
      arguments of other types: ignored
    an argument not set: not noticed                            Misuse at start()
  * an argument whose buffer is gone                            Misuse at start()
    instructions' length: not looked at                         bytes, and the header's, or Misuse
    run() without a kernel, started: segfault                   Misuse
  * device(), hw_context(), runlist() without arguments, used   Misuse
    start() while it runs, start() of a run in a runlist        the same RuntimeError
    wait() gives ERROR, ABORT, TIMEOUT; wait2() raises          the same
    wait(ms) that is over before the run: TIMEOUT, state() 3    the same (Fault.SLOW)
    state() 3 has no name                                       the same
  * wait() before start(), or of a run in a runlist             Misuse
    wait2(t), runlist.wait(t), add_callback(): TypeError        the same
    runlist: duplicates, runs of other contexts: taken          Misuse
    runlist: runs that share bytes one writes: raced            Misuse
    runlist: empty, executed again: fine; 24 to a submit; only  the same
      the last run's state is updated
    fifth start in a shim's queue: dropped, then a hang         Misuse; and every rule of txn.check
    a design or a kernel that does wrong: anything              its DesignFault or KernelFault
    a hung array: TIMEOUT after the driver's reset              at once; the context is dead, and
                                                                Machine.journal says who waits
  * a run on a context that died                                Misuse
    another context's run: the array's state is lost            the same
  * a run of another kernel of the same xclbin                  the same: its image is loaded
  * cacheable data, instructions that are host_only             Misuse
    contexts, pinned memory over their limits: RuntimeError     the same

Not here: the ELF flow (elf, module, program, ext), graphs and Versal (graph, aie). Not like the
real one: nothing takes time, and threads run while one waits. Texts of errors are exact where they
were measured: devices, xclbins, kernels, flags, states, failures of runs and lists. The keys of
`platform` and `host` are XRT's; where it tells the firmware's version was not seen.
"""

from typing import NoReturn

from npu_kernels.fakexrt.array import Array
from npu_kernels.fakexrt.buffers import bo
from npu_kernels.fakexrt.configuration import Simulated, configure
from npu_kernels.fakexrt.contexts import hw_context, kernel
from npu_kernels.fakexrt.devices import device, enumerate_devices, uuid, xclbin
from npu_kernels.fakexrt.enums import (
    ert_cmd_state,
    xclBOSyncDirection,
    xrt_info_device,
    xrt_msg_level,
)
from npu_kernels.fakexrt.faults import Fault, Misuse
from npu_kernels.fakexrt.machine import MODELS, Machine, current, use
from npu_kernels.fakexrt.runs import run, runlist

XCL_BO_SYNC_BO_TO_DEVICE = xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
XCL_BO_SYNC_BO_FROM_DEVICE = xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
XCL_BO_SYNC_BO_GMIO_TO_AIE = xclBOSyncDirection.XCL_BO_SYNC_BO_GMIO_TO_AIE
XCL_BO_SYNC_BO_AIE_TO_GMIO = xclBOSyncDirection.XCL_BO_SYNC_BO_AIE_TO_GMIO


def log_message(level: xrt_msg_level, tag: str, message: str, /) -> None:
    current().journal.append(f"{level.name} [{tag}]: {message}")


_NOT_HERE = {"elf", "module", "program", "ext", "graph", "aie"}


def __getattr__(name: str) -> NoReturn:
    reason = ": fakexrt has no ELF flow, and nothing of Versal" if name in _NOT_HERE else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{reason}")


__all__ = [
    "MODELS",
    "XCL_BO_SYNC_BO_AIE_TO_GMIO",
    "XCL_BO_SYNC_BO_FROM_DEVICE",
    "XCL_BO_SYNC_BO_GMIO_TO_AIE",
    "XCL_BO_SYNC_BO_TO_DEVICE",
    "Array",
    "Fault",
    "Machine",
    "Misuse",
    "Simulated",
    "bo",
    "configure",
    "current",
    "device",
    "enumerate_devices",
    "ert_cmd_state",
    "hw_context",
    "kernel",
    "log_message",
    "run",
    "runlist",
    "use",
    "uuid",
    "xclBOSyncDirection",
    "xclbin",
    "xrt_info_device",
    "xrt_msg_level",
]

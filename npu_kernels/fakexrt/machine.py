"""The machine that fakexrt pretends to run on: its NPU, its limits, what is made to go wrong."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from uuid import UUID

from npu_kernels.fakexrt.configuration import Configure, configure
from npu_kernels.fakexrt.faults import Fault
from npu_kernels.txn import NPU1, NPU2, Geometry
from npu_kernels.xclbin import Xclbin

MIB = 1 << 20
HEAP_BASE = 0x04000000


@dataclass(frozen=True, slots=True)
class Model:
    """PCI ids are 1022:device, revision."""

    device: int
    revision: int
    geometry: Geometry
    contexts: int


MODELS = {
    "NPU Phoenix": Model(0x1502, 0x00, NPU1, 6),
    "NPU Strix": Model(0x17F0, 0x10, NPU2, 16),
    "NPU Strix Halo": Model(0x17F0, 0x11, NPU2, 16),
    "NPU Krackan 1": Model(0x17F0, 0x20, NPU2, 16),
}


@dataclass(slots=True)
class Counts:
    """What happened so far."""

    runs: int = 0
    submits: int = 0
    configurations: int = 0  # an array was set up anew
    bytes_read: int = 0  # by the array, from buffers
    bytes_written: int = 0
    bytes_synced: int = 0


@dataclass
class Machine:
    """Everything can be set; what is set late holds from then on."""

    name: str = "NPU Strix"
    devices: int = 1
    bdf: str = "0000:c5:00.1"
    driver: str = "2.23.0"
    firmware: str = "1.1.2.64"
    xrt: str = "2.26.0"
    power_mode: str = "Default"
    contexts_max: int | None = None  # else as the model has
    heap_bytes: int = 64 * MIB
    heap_bytes_max: int = 512 * MIB
    memlock_bytes: int | None = None
    allow: Collection[str] = ()  # rules of streams that are not enforced
    configure: Configure = configure

    journal: list[str] = field(default_factory=list)  # what the driver logs
    counts: Counts = field(default_factory=Counts)
    registered: dict[UUID, Xclbin] = field(default_factory=dict)
    contexts: int = 0  # alive
    pinned_bytes: int = 0
    heap_used: int = 0
    _faults: deque[Fault | None] = field(default_factory=deque)
    _loaded: tuple[int, int] | None = None  # whose state the array holds: a context, its kernel
    _numbers: int = 0
    _heap_next: int = HEAP_BASE

    @property
    def model(self) -> Model:
        return MODELS[self.name]

    def next_run(self, fault: Fault | None) -> None:
        """Of the run after those already spoken for; None lets one pass."""
        self._faults.append(fault)

    def take_fault(self) -> Fault | None:
        return self._faults.popleft() if self._faults else None

    def info(self, key: str) -> str:
        model = self.model
        platform = {
            "static_region": {"name": self.name},
            "status": {"power_mode": self.power_mode},
            "total_columns": str(model.geometry.columns),
            "firmware_version": self.firmware,
        }
        drivers = [{"name": "amdxdna", "version": self.driver}]
        answers = {
            "bdf": self.bdf,
            "name": self.name,
            "nodma": "0",
            "offline": "0",
            "max_clock_frequency_mhz": "1800",
            "platform": json.dumps({"platforms": [platform]}),
            "host": json.dumps({"version": self.xrt, "drivers": drivers}),
            "pcie_info": json.dumps(
                {
                    "vendor": "0x1022",
                    "device": f"0x{model.device:04x}",
                    "revision": f"0x{model.revision:02x}",
                }
            ),
        }
        return answers.get(key, "NA")

    # What contexts and buffers take

    def open_context(self) -> int:
        most = self.model.contexts if self.contexts_max is None else self.contexts_max
        if self.contexts >= most:
            raise RuntimeError(
                "DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed (err=2): No such file or directory"
            )
        self.contexts += 1
        self._numbers += 1
        return self._numbers

    def close_context(self, number: int) -> None:
        self.contexts -= 1
        self.forget(number)

    def switch(self, number: int, kernel: int) -> bool:
        """The array goes to this context's kernel; whether it was configured otherwise till now."""
        switched = self._loaded != (number, kernel)
        self._loaded = (number, kernel)
        self.counts.configurations += switched
        return switched

    def forget(self, number: int) -> None:
        if self._loaded is not None and self._loaded[0] == number:
            self._loaded = None

    def pin(self, nbytes: int) -> None:
        if self.memlock_bytes is not None and self.pinned_bytes + nbytes > self.memlock_bytes:
            raise RuntimeError(
                "DRM_IOCTL_AMDXDNA_CREATE_BO IOCTL failed (err=12): Cannot allocate memory"
            )
        self.pinned_bytes += nbytes

    def from_heap(self, nbytes: int) -> int:
        """The address of what is taken; the heap grows by its first size until it may not."""
        if self.heap_used + nbytes > self.heap_bytes_max:
            raise RuntimeError(
                "DRM_IOCTL_AMDXDNA_CREATE_BO IOCTL failed (err=12): Cannot allocate memory"
            )
        self.heap_used += nbytes
        self._heap_next += nbytes
        return self._heap_next - nbytes

    @property
    def heap_size(self) -> int:
        """What has been set aside so far."""
        return -(-max(self.heap_used, 1) // self.heap_bytes) * self.heap_bytes


_machines = [Machine()]


def use(machine: Machine) -> Machine:
    """What devices opened from now on belong to."""
    _machines[0] = machine
    return machine


def current() -> Machine:
    return _machines[0]

"""What this machine has, told by the kernel alone: no driver library, no onnxruntime."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from flm.devices.machine import cores_physical, memory_bytes
from flm.devices.npu import Npu, driver_loaded, npus, numbers, on_the_bus, text

KERNEL_MIN = (6, 17)
MEMLOCK_MB_MIN = 100
CPU_FLAGS = ("avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8")


@dataclass(frozen=True, slots=True)
class Machine:
    """`memlock_mb` None is no limit; `cores` and `memory_bytes` are what we may use of them.

    `npus_on_bus`: PCI addresses of NPUs, whether a driver has them or not.
    """

    kernel: str
    npus: tuple[Npu, ...]
    memlock_mb: int | None
    cpu: str
    cpu_flags: tuple[str, ...]
    cores: int
    memory_bytes: int
    npus_on_bus: tuple[str, ...] = ()
    driver_loaded: bool = True

    @property
    def kernel_ok(self) -> bool:
        return numbers(self.kernel)[:2] >= KERNEL_MIN

    @property
    def memlock_ok(self) -> bool:
        return self.memlock_mb is None or self.memlock_mb >= MEMLOCK_MB_MIN

    @property
    def npu_ready(self) -> bool:
        return self.kernel_ok and self.memlock_ok and any(npu.ready for npu in self.npus)


def probe(root: Path = Path("/")) -> Machine:
    flags, cpu = _cpu(root)
    return Machine(
        kernel=platform.release(),
        npus=npus(root),
        memlock_mb=_memlock_mb(),
        cpu=cpu,
        cpu_flags=flags,
        cores=cores_physical(),
        memory_bytes=memory_bytes(),
        npus_on_bus=on_the_bus(root),
        driver_loaded=driver_loaded(root),
    )


def _memlock_mb() -> int | None:
    """The limit on pinned memory, raised as far as we are allowed to."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    return None if hard == resource.RLIM_INFINITY else hard // 2**20


def _cpu(root: Path) -> tuple[tuple[str, ...], str]:
    said = text(root / "proc/cpuinfo")
    flags = re.search(r"^flags\s*:(.*)$", said, re.MULTILINE)
    name = re.search(r"^model name\s*:\s*(.*)$", said, re.MULTILINE)
    has = flags[1].split() if flags else []
    return tuple(flag for flag in CPU_FLAGS if flag in has), name[1] if name else "unknown"

"""What this machine has, told by the kernel alone: no driver library, no onnxruntime.

The NPU part follows the amdxdna driver's documentation; it never ran beside a real NPU.
"""

import os
import platform
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from flm.devices.machine import cores_physical, memory_bytes

KERNEL_MIN = (6, 17)
FIRMWARE_MIN = (1, 1)
DRM_MIN = (0, 6)
COLUMNS_MIN = 8
MEMLOCK_MB_MIN = 100
ACCEL_NODES_MAX = 16
AMD = 0x1022
COLUMNS = {0x17F0: 8, 0x1502: 5}  # by PCI device: XDNA2 (Strix, Krackan), XDNA1 (Phoenix)
CPU_FLAGS = ("avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8")
_DRM_IOCTL_VERSION = 0xC0406400  # _IOWR('d', 0, struct drm_version), 64 bytes


@dataclass(frozen=True, slots=True)
class Npu:
    """`firmware` and `drm` are () where the driver does not say; `columns` 0 if unknown."""

    node: str
    opened: bool
    columns: int
    firmware: tuple[int, ...]
    drm: tuple[int, ...]

    @property
    def ready(self) -> bool:
        return (
            self.opened
            and self.columns >= COLUMNS_MIN
            and self.firmware >= FIRMWARE_MIN
            and self.drm >= DRM_MIN
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """`memlock_mb` None is no limit; `cores` and `memory_bytes` are what we may use of them."""

    kernel: str
    npus: tuple[Npu, ...]
    memlock_mb: int | None
    cpu: str
    cpu_flags: tuple[str, ...]
    cores: int
    memory_bytes: int

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
        npus=_npus(root),
        memlock_mb=_memlock_mb(),
        cpu=cpu,
        cpu_flags=flags,
        cores=cores_physical(),
        memory_bytes=memory_bytes(),
    )


def numbers(version: str) -> tuple[int, ...]:
    """The numbers a version starts with: "6.17.0-14-generic" is (6, 17, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _npus(root: Path) -> tuple[Npu, ...]:
    found = []
    for number in range(ACCEL_NODES_MAX):
        node = root / f"dev/accel/accel{number}"
        device = root / f"sys/class/accel/accel{number}/device"
        if not node.exists() or _hex(_text(device / "vendor")) not in (None, AMD):
            continue
        opened, drm = _drm_version(node)
        columns = COLUMNS.get(_hex(_text(device / "device")) or 0, 0)
        firmware = numbers(_text(device / "fw_version"))
        found.append(Npu(f"/{node.relative_to(root)}", opened, columns, firmware, drm))
    return tuple(found)


def _drm_version(node: Path) -> tuple[bool, tuple[int, ...]]:
    """(whether we may open it, its driver's version)."""
    import fcntl

    try:
        descriptor = os.open(node, os.O_RDWR)
    except OSError:
        return False, ()
    try:
        answer = fcntl.ioctl(descriptor, _DRM_IOCTL_VERSION, bytes(64))
    except OSError:
        return True, ()
    finally:
        os.close(descriptor)
    return True, struct.unpack_from("3i", answer)


def _memlock_mb() -> int | None:
    """The limit on pinned memory, raised as far as we are allowed to."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    return None if hard == resource.RLIM_INFINITY else hard // 2**20


def _cpu(root: Path) -> tuple[tuple[str, ...], str]:
    text = _text(root / "proc/cpuinfo")
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    name = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    has = flags[1].split() if flags else []
    return tuple(flag for flag in CPU_FLAGS if flag in has), name[1] if name else "unknown"


def _hex(text: str) -> int | None:
    return int(text, 16) if text.startswith("0x") else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""

"""NPUs as the kernel tells of them: PCI ids, the amdxdna driver, its device nodes.

It follows the driver's headers and documentation; it never ran beside a real NPU.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

NEVER_RAN = "No kernel of this version has run on an NPU yet: they are proven by simulation."
SIMULATED = (
    "Simulated NPU: its kernels run on the CPU, at seconds a token even for a tiny model; "
    "nothing runs on silicon."
)
AMD = 0x1022
ACCEL_NODES_MAX = 16
FIRMWARE_MIN = (1, 1)
DRM_MIN = (0, 6)
COLUMNS_MIN = 8
FAMILY = "npu2"  # that kernels here are made for
COLUMNS = {"npu1": 5, "npu2": 8}
POWER_MODES = ("default", "low", "medium", "high", "turbo")
_DRM_IOCTL_VERSION = 0xC0406400  # _IOWR('d', 0, struct drm_version), 64 bytes
_AMDXDNA_GET_INFO = 0xC0106447  # _IOWR('d', 0x47, struct amdxdna_drm_get_info), 16 bytes
_GET_POWER_MODE = 9


@dataclass(frozen=True, slots=True)
class Silicon:
    """`family`: npu1 is XDNA, npu2 XDNA2; "" where it is not known."""

    name: str
    family: str


# By PCI device and revision.
SILICON = {
    (0x1502, 0x00): Silicon("Phoenix or Hawk Point", "npu1"),
    (0x17F0, 0x10): Silicon("Strix", "npu2"),
    (0x17F0, 0x11): Silicon("Strix Halo", "npu2"),
    (0x17F0, 0x20): Silicon("Krackan", "npu2"),
}
FAMILIES = {0x1502: "npu1"}  # whatever the revision
# By what drivers call them; Gorgon Point is XDNA2 whose revision we do not know.
NAMED = {
    "npu1": ("npu1", "phoenix"),
    "npu2": ("npu4", "npu5", "npu6", "strix", "krackan", "gorgon"),
}


def silicon(device: int, revision: int, name: str) -> Silicon:
    """By PCI id first, by the driver's name for it second."""
    if known := SILICON.get((device, revision)):
        return known
    if family := FAMILIES.get(device):
        return Silicon(name or "unknown", family)
    words = name.lower()
    families = [family for family, names in NAMED.items() if any(n in words for n in names)]
    return Silicon(name or "unknown", families[0] if device == 0x17F0 and families else "")


@dataclass(frozen=True, slots=True)
class Npu:
    """`firmware` and `drm` are () where the driver does not say; `columns` 0 if unknown.

    `device`, `revision`: of the PCI bus. `power_mode`: "" where the driver does not say.
    """

    node: str
    opened: bool
    columns: int
    firmware: tuple[int, ...]
    drm: tuple[int, ...]
    name: str = "unknown"
    family: str = FAMILY
    device: int = 0
    revision: int = 0
    power_mode: str = ""

    @property
    def firmware_ok(self) -> bool:
        return self.firmware >= FIRMWARE_MIN

    @property
    def drm_ok(self) -> bool:
        return self.drm >= DRM_MIN

    @property
    def columns_ok(self) -> bool:
        return self.columns >= COLUMNS_MIN

    @property
    def ready(self) -> bool:
        suffices = self.columns_ok and self.firmware_ok and self.drm_ok
        return self.opened and self.family == FAMILY and suffices


def npus(root: Path) -> tuple[Npu, ...]:
    """Those with a device node."""
    found = []
    for number in range(ACCEL_NODES_MAX):
        node = root / f"dev/accel/accel{number}"
        place = root / f"sys/class/accel/accel{number}/device"
        if not node.exists() or _hex(place / "vendor") not in (None, AMD):
            continue
        device, revision = _hex(place / "device") or 0, _hex(place / "revision") or 0
        chip = silicon(device, revision, text(place / "vbnv"))
        opened, drm, mode = _asked(node)
        found.append(
            Npu(
                node=f"/{node.relative_to(root)}",
                opened=opened,
                columns=COLUMNS.get(chip.family, 0),
                firmware=numbers(text(place / "fw_version")),
                drm=drm,
                name=chip.name,
                family=chip.family,
                device=device,
                revision=revision,
                power_mode=mode,
            )
        )
    return tuple(found)


def on_the_bus(root: Path) -> tuple[str, ...]:
    """PCI addresses of NPUs, whether a driver has them or not."""
    devices = {device for device, _ in SILICON}
    return tuple(
        place.name
        for place in sorted((root / "sys/bus/pci/devices").glob("*"))
        if _hex(place / "vendor") == AMD and _hex(place / "device") in devices
    )


def driver_loaded(root: Path) -> bool:
    return (root / "sys/module/amdxdna").exists()


def numbers(version: str) -> tuple[int, ...]:
    """The numbers a version starts with: "6.17.0-14-generic" is (6, 17, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _asked(node: Path) -> tuple[bool, tuple[int, ...], str]:
    """(whether we may open it, its driver's version, its power mode)."""
    try:
        descriptor = os.open(node, os.O_RDWR)
    except OSError:
        return False, (), ""
    try:
        return True, _drm_version(descriptor), _power_mode(descriptor)
    finally:
        os.close(descriptor)


def _drm_version(descriptor: int) -> tuple[int, ...]:
    try:
        answer = fcntl.ioctl(descriptor, _DRM_IOCTL_VERSION, bytes(64))
    except OSError:
        return ()
    return struct.unpack_from("3i", answer)


def _power_mode(descriptor: int) -> str:
    answer = (ctypes.c_uint8 * 8)()
    asked = struct.pack("<IIQ", _GET_POWER_MODE, len(answer), ctypes.addressof(answer))
    try:
        fcntl.ioctl(descriptor, _AMDXDNA_GET_INFO, asked)
    except OSError:
        return ""
    return POWER_MODES[answer[0]] if answer[0] < len(POWER_MODES) else f"mode {answer[0]}"


def _hex(path: Path) -> int | None:
    said = text(path)
    return int(said, 16) if said.startswith("0x") else None


def text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""

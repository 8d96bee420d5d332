"""Whether an NPU could be used here: one check after the other, each failure with its fix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flm.devices.npu import COLUMNS_MIN, DRM_MIN, FAMILY, FIRMWARE_MIN, Npu
from flm.devices.probe import KERNEL_MIN, Machine, probe
from flm.devices.xrt.opened import Opened, open_npu
from flm.errors import DeviceUnavailable

FIRMWARE_FIX = (
    "update the firmware of the distribution (linux-firmware, amdnpu/17f0_*/npu.sbin), and restart"
)
MEMLOCK_FIX = (
    "a file in /etc/security/limits.d/ with '* - memlock unlimited', then log in again; "
    "LimitMEMLOCK=infinity in a systemd unit; --ulimit memlock=-1 in a container"
)


@dataclass(frozen=True, slots=True)
class Check:
    """`fix` is "" where it is fine. What does not stop an NPU is `advice`."""

    name: str
    said: str
    fine: bool
    fix: str = ""
    advice: bool = False


def require_npu() -> None:
    """Raises DeviceUnavailable for the first thing that stands in the way. pyxrt opens the NPU."""
    machine = probe()
    opened = open_npu() if machine.npu_ready else None
    for check in checks(machine, opened):
        if not check.fine and not check.advice:
            raise DeviceUnavailable(f"The NPU cannot be used. {check.said}", fix=check.fix)


def checks(machine: Machine, opened: Opened | None) -> tuple[Check, ...]:
    """`opened`: what pyxrt made of it; None where nobody asked."""
    return tuple(_checks(machine, opened))


def _checks(machine: Machine, opened: Opened | None) -> Iterator[Check]:
    yield _check(
        *("kernel", f"Kernel: {machine.kernel}", machine.kernel_ok),
        f"install Linux {_dotted(KERNEL_MIN)} or newer, whose amdxdna driver is recent enough",
    )
    if not machine.npus:
        yield _absent(machine)
    for npu in machine.npus:
        yield from _of(npu)
    limit = "infinity" if machine.memlock_mb is None else f"{machine.memlock_mb} MB"
    yield _check("memlock", f"Memlock Limit: {limit}", machine.memlock_ok, MEMLOCK_FIX)
    if machine.memlock_mb is not None and machine.memlock_ok:
        said = f"More than {machine.memlock_mb} MB of weights, keys and values cannot be pinned."
        yield Check("memlock room", said, False, MEMLOCK_FIX, advice=True)
    if opened is not None:
        version = f" (XRT {opened.version})" if opened.version else ""
        said = f"pyxrt: opened {opened.name}{version}" if opened.fine else f"pyxrt: {opened.said}"
        yield _check("xrt", said, opened.fine, opened.fix)


def _absent(machine: Machine) -> Check:
    if not machine.npus_on_bus:
        fix = "the NPU may be off in the BIOS; without one, --device cpu serves"
        return Check("npu", "No NPU device found.", False, fix)
    where = ", ".join(machine.npus_on_bus)
    if not machine.driver_loaded:
        fix = f"sudo modprobe amdxdna; it comes with Linux {_dotted(KERNEL_MIN)}, or xdna-driver"
        return Check("driver", f"No driver for the NPU at {where}.", False, fix)
    fix = "dmesg | grep amdxdna says why: mostly firmware that is missing or does not fit"
    return Check("driver", f"amdxdna did not take the NPU at {where}.", False, fix)


def _of(npu: Npu) -> Iterator[Check]:
    if not npu.opened:
        fix = "sudo usermod -aG render $USER, then log in again"
        yield Check("permission", f"{npu.node} may not be opened.", False, fix)
        return
    known = f"{npu.name}, PCI 1022:{npu.device:04x} revision {npu.revision:#04x}"
    if npu.family:
        fix = f"kernels here are made for {FAMILY} (XDNA2: Strix, Strix Halo, Krackan)"
    else:
        fix = "its revision is not in our table: please report it with flm validate --json"
    yield _check("model", f"NPU model: {known}", npu.family == FAMILY, fix)
    yield _check(
        *("columns", f"NPU: {npu.node} with {npu.columns} columns", npu.columns_ok),
        f"kernels here need {COLUMNS_MIN}",
    )
    yield _check(
        "firmware",
        f"NPU FW Version: {_dotted(npu.firmware) or 'unknown'}",
        npu.firmware_ok,
        f"needs {_dotted(FIRMWARE_MIN)} or newer: {FIRMWARE_FIX}",
    )
    yield _check(
        "driver",
        f"amdxdna version: {_dotted(npu.drm[:2]) or 'unknown'}",
        npu.drm_ok,
        f"needs {_dotted(DRM_MIN)} or newer: update the kernel, or build xdna-driver",
    )
    if npu.power_mode:
        slow = npu.power_mode not in ("turbo", "high")
        fix = "sudo xrt-smi configure --pmode performance has made decoding twice as fast elsewhere"
        said = f"NPU power mode: {npu.power_mode}"
        yield Check("power mode", said, not slow, fix if slow else "", advice=True)


def _check(name: str, said: str, fine: bool, fix: str) -> Check:
    return Check(name, said, fine, "" if fine else fix)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))

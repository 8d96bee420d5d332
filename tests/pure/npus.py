"""A made-up /sys and /dev with an NPU."""

from pathlib import Path

ADDRESS = "0000:c5:00.1"


def make_npu(
    root: Path,
    *,
    vendor: str = "0x1022",
    device: str = "0x17f0",
    revision: str = "0x10",
    firmware: str = "1.1.2.64",
    name: str = "",
    driver: bool = True,
) -> Path:
    """On the bus, and, where there is a driver, with its node, which is returned."""
    bus = root / "sys/bus/pci/devices" / ADDRESS
    folder = root / "sys/class/accel/accel0/device"
    node = root / "dev/accel/accel0"
    for place in (bus, folder) if driver else (bus,):
        place.mkdir(parents=True)
        said = {"vendor": vendor, "device": device, "revision": revision}
        said |= {"fw_version": firmware, "vbnv": name} if place is folder else {}
        for file, text in said.items():
            (place / file).write_text(text + "\n")
    if driver:
        (root / "sys/module/amdxdna").mkdir(parents=True)
        node.parent.mkdir(parents=True)
        node.touch()
    return node

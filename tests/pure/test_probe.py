"""What the kernel says of an NPU is read as FastFlowLM reads it, from a made-up /sys and /dev."""

from pathlib import Path

import pytest

from flm.cli.validate import report
from flm.devices import machine, npu
from flm.devices.npu import Npu, numbers
from flm.devices.probe import probe
from tests.pure.npus import make_npu


def test_an_npu_is_found_with_its_columns_and_firmware(tmp_path: Path) -> None:
    make_npu(tmp_path)
    (found,) = probe(tmp_path).npus
    assert (found.node, found.opened, found.columns) == ("/dev/accel/accel0", True, 8)
    assert (found.name, found.firmware, found.drm) == ("Strix", (1, 1, 2, 64), ())
    assert not found.ready, "a driver that does not answer is no driver"


def test_an_npu_is_ready_when_firmware_driver_and_columns_suffice() -> None:
    assert Npu("/dev/accel/accel0", True, 8, (1, 1, 2, 64), (0, 6, 0)).ready
    assert not Npu("/dev/accel/accel0", True, 8, (1, 0, 9, 9), (0, 6, 0)).ready
    assert not Npu("/dev/accel/accel0", True, 8, (1, 1), (0, 5, 0)).ready
    assert not Npu("/dev/accel/accel0", True, 5, (1, 1), (0, 6, 0)).ready
    assert not Npu("/dev/accel/accel0", False, 8, (1, 1), (0, 6, 0)).ready


def test_another_makers_accelerator_is_not_an_npu(tmp_path: Path) -> None:
    make_npu(tmp_path, vendor="0x8086")
    assert probe(tmp_path).npus == ()


def test_the_report_has_fastflowlms_keys_for_each_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_npu(tmp_path)
    monkeypatch.setattr(npu, "_drm_version", lambda descriptor: (0, 10, 0))
    said = report(probe(tmp_path))
    assert said["drm_version"] == "0.10"
    assert said["amd_device_found"]
    assert said["devices"] == [
        {
            "device": "/dev/accel/accel0",
            "cols": 8,
            "fw_major": 1,
            "fw_minor": 1,
            "fw_patch": 2,
            "fw_build": 64,
            "fw_ok": True,
            "name": "Strix",
            "pci": "1022:17f0:10",
            "power_mode": "",
        }
    ]


def test_numbers_end_where_a_version_stops_being_numbers() -> None:
    assert numbers("6.17.0-14-generic") == (6, 17, 0)
    assert numbers("1.1.2.64") == (1, 1, 2, 64)
    assert numbers("unknown") == ()


@pytest.mark.parametrize(
    ("text", "cores"), [("50000 100000\n", 1), ("100000 100000\n", 1), ("max 100000\n", None)]
)
def test_a_container_held_to_less_than_its_cores_gets_fewer_threads(
    text: str, cores: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = machine.cores_physical()
    limit = tmp_path / "cpu.max"
    limit.write_text(text)
    monkeypatch.setattr(machine, "CGROUP_CPU", limit)
    assert machine.cores_physical() == (cores or free)

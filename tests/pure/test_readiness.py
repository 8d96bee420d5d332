"""What stands between this machine and its NPU is named, each thing with what mends it."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flm.devices import npu as module
from flm.devices import readiness
from flm.devices.probe import Machine, probe
from flm.devices.readiness import checks, require_npu
from flm.devices.xrt import opened
from flm.devices.xrt.opened import Opened, open_npu
from flm.errors import DeviceUnavailable
from tests.pure.npus import ADDRESS, make_npu

READY = Opened(name="NPU Strix", version="2.26.0")


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers whoever may open a node."""
    monkeypatch.setattr(module, "_drm_version", lambda descriptor: (0, 10, 0))
    monkeypatch.setattr(module, "_power_mode", lambda descriptor: "turbo")


def found(root: Path, **changes: object) -> Machine:
    whole = {"kernel": "6.17.0-14-generic", "memlock_mb": None}
    return replace(probe(root), **{**whole, **changes})  # type: ignore[arg-type]


def failures(machine: Machine, asked: Opened = READY) -> dict[str, str]:
    """What does not stop an NPU is not among them. Every failure has a fix, nothing else has."""
    said = checks(machine, asked)
    assert all(check.fine or check.fix for check in said)
    assert not any(check.fine and check.fix for check in said)
    return {check.name: f"{check.said} {check.fix}" for check in said if not check.fine}


def test_a_machine_that_has_everything_is_ready(tmp_path: Path) -> None:
    make_npu(tmp_path)
    machine = found(tmp_path)
    assert failures(machine) == {}
    assert machine.npu_ready


def test_an_old_kernel(tmp_path: Path) -> None:
    make_npu(tmp_path)
    machine = found(tmp_path, kernel="6.14.0-33-generic")
    assert "6.17" in failures(machine)["kernel"]
    assert not machine.npu_ready


def test_no_npu(tmp_path: Path) -> None:
    assert "BIOS" in failures(found(tmp_path))["npu"]


def test_no_driver(tmp_path: Path) -> None:
    make_npu(tmp_path, driver=False)
    said = failures(found(tmp_path))["driver"]
    assert "modprobe amdxdna" in said
    assert ADDRESS in said


def test_a_driver_that_did_not_take_it(tmp_path: Path) -> None:
    make_npu(tmp_path, driver=False)
    (tmp_path / "sys/module/amdxdna").mkdir(parents=True)
    assert "firmware" in failures(found(tmp_path))["driver"]


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    make_npu(tmp_path)
    monkeypatch.setattr(module.os, "open", refused)
    machine = found(tmp_path)
    assert "usermod -aG render" in failures(machine)["permission"]
    assert not machine.npu_ready


@pytest.mark.parametrize("firmware", ["1.0.9.9", "0.7", ""])
def test_wrong_firmware(firmware: str, tmp_path: Path) -> None:
    make_npu(tmp_path, firmware=firmware)
    machine = found(tmp_path)
    assert "linux-firmware" in failures(machine)["firmware"]
    assert not machine.npu_ready


def test_an_old_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_drm_version", lambda descriptor: (0, 5, 0))
    make_npu(tmp_path)
    assert "0.6" in failures(found(tmp_path))["driver"]


@pytest.mark.parametrize("megabytes", [8, 99])
def test_memlock_too_low(megabytes: int, tmp_path: Path) -> None:
    make_npu(tmp_path)
    machine = found(tmp_path, memlock_mb=megabytes)
    assert "LimitMEMLOCK=infinity" in failures(machine)["memlock"]
    assert not machine.npu_ready


def test_memlock_that_models_will_outgrow_is_advice(tmp_path: Path) -> None:
    make_npu(tmp_path)
    machine = found(tmp_path, memlock_mb=4096)
    assert "4096 MB" in failures(machine)["memlock room"]
    assert machine.npu_ready


def test_a_slow_power_mode_is_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_power_mode", lambda descriptor: "default")
    make_npu(tmp_path)
    machine = found(tmp_path)
    assert "xrt-smi configure" in failures(machine)["power mode"]
    assert machine.npu_ready


@pytest.mark.parametrize(
    ("device", "revision", "name", "called", "ready"),
    [
        ("0x17f0", "0x10", "", "Strix", True),
        ("0x17f0", "0x11", "RyzenAI-npu5", "Strix Halo", True),
        ("0x17f0", "0x20", "", "Krackan", True),
        ("0x17f0", "0x33", "NPU Gorgon Point", "NPU Gorgon Point", True),
        ("0x17f0", "0x33", "", "unknown", False),
        ("0x1502", "0x00", "NPU Phoenix", "Phoenix or Hawk Point", False),
        ("0x1502", "0x01", "", "unknown", False),
        ("0x17f1", "0x10", "NPU Strix", "NPU Strix", False),
    ],
)
def test_models_go_by_their_pci_id_and_then_by_name(
    device: str, revision: str, name: str, called: str, ready: bool, tmp_path: Path
) -> None:
    make_npu(tmp_path, device=device, revision=revision, name=name)
    machine = found(tmp_path)
    (npu,) = machine.npus
    assert npu.name == called
    assert machine.npu_ready == ready
    assert ("model" in failures(machine)) != ready


PYXRT = {
    "opens": """
class xrt_info_device: name, host = "name", "host"
class device:
    def __init__(self, index): assert index == 0
    def get_info(self, key): return {"name": "NPU Strix", "host": '{"version": "2.26.0"}'}[key]
""",
    "no plugin": """
def device(index): raise RuntimeError("No such device with index '0'")
""",
    "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "hangs": "import signal; signal.pause()",
    "another python's": "raise ImportError('undefined symbol: PyThreadState_Get')",
}


@pytest.mark.parametrize(
    ("module", "said", "fix"),
    [
        ("opens", "", ""),
        ("no plugin", "No such device with index '0'", "libxrt_driver_xdna"),
        ("crashes", "signal 11", "one and the same version"),
        ("hangs", "did not open", "dmesg"),
        ("another python's", "undefined symbol", f"3.{sys.version_info.minor}"),
    ],
)
def test_pyxrt_is_asked_to_open_it(
    module: str, said: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another process: nothing it does ends this one."""
    (tmp_path / "pyxrt.py").write_text(PYXRT[module])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = open_npu(patience_s=1.0 if module == "hangs" else opened.PATIENCE_S)
    assert said in result.said
    assert fix in result.fix
    assert result.fine == (module == "opens")
    if result.fine:
        assert (result.name, result.version) == ("NPU Strix", "2.26.0")


def test_without_pyxrt_the_fix_is_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_npu(tmp_path)
    (tmp_path / "pyxrt.py").write_text("raise ModuleNotFoundError(\"No module named 'pyxrt'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = failures(found(tmp_path), open_npu())
    assert "install XRT" in said["xrt"]


@pytest.mark.parametrize(
    ("changes", "asked", "said", "fix"),
    [
        ({"npus": (), "npus_on_bus": ()}, READY, "No NPU device found", "--device cpu"),
        ({"memlock_mb": 8}, READY, "Memlock Limit: 8 MB", "memlock unlimited"),
        ({}, Opened(said="No module named 'pyxrt'", fix="install XRT"), "pyxrt", "install XRT"),
    ],
)
def test_an_npu_that_is_asked_for_and_cannot_be_used_is_refused(
    changes, asked, said, fix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_npu(tmp_path)
    monkeypatch.setattr(readiness, "probe", lambda: found(tmp_path, **changes))
    monkeypatch.setattr(readiness, "open_npu", lambda: asked)
    with pytest.raises(DeviceUnavailable, match=f"The NPU cannot be used. .*{said}") as caught:
        require_npu()
    assert fix in caught.value.fix


def test_an_npu_that_is_ready_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_npu(tmp_path)
    monkeypatch.setattr(readiness, "probe", lambda: found(tmp_path, memlock_mb=4096))
    monkeypatch.setattr(readiness, "open_npu", lambda: READY)
    require_npu()

"""Whether pyxrt opens the NPU: the driver's files can all be there and XRT's plugin be missing.

In a process of its own: where pyxrt and its drivers do not fit, it crashes or hangs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

PATIENCE_S = 20.0
# On stdout one line of JSON; what XRT says is said elsewhere.
SCRIPT = """
import json, sys
try:
    import pyxrt
except ImportError as error:
    print(json.dumps({"missing": str(error)})); sys.exit()
try:
    device = pyxrt.device(0)
    info = {key: device.get_info(getattr(pyxrt.xrt_info_device, key)) for key in ("name", "host")}
    print(json.dumps({"info": info}))
except Exception as error:
    print(json.dumps({"refused": str(error)}))
"""


@dataclass(frozen=True, slots=True)
class Opened:
    """`said`, `fix`: what stood in the way, or "". `version`: of XRT."""

    name: str = ""
    version: str = ""
    said: str = ""
    fix: str = ""

    @property
    def fine(self) -> bool:
        return not self.said


def open_npu(patience_s: float = PATIENCE_S) -> Opened:
    """Opens device 0 and closes it."""
    command = [sys.executable, "-c", SCRIPT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience_s)
    except subprocess.TimeoutExpired:
        said = f"device 0 did not open within {patience_s:g} s"
        return Opened(said=said, fix="dmesg | grep amdxdna says why; a restart mends most of it")
    if done.returncode < 0:
        said = f"it crashed as it opened device 0 (signal {-done.returncode})"
        return Opened(
            said=said, fix="install XRT and its amdxdna plugin of one and the same version"
        )
    return _understood(done.stdout)


def _understood(output: str) -> Opened:
    try:
        said = json.loads(output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return Opened(said=f"it said {output.strip()[:80]!r}", fix="install XRT again")
    if "missing" in said:
        fix = (
            f"install XRT with Python {sys.version_info.major}.{sys.version_info.minor}'s binding, "
            "then: source /opt/xilinx/xrt/setup.sh"
        )
        return Opened(said=said["missing"], fix=fix)
    if "refused" in said:
        fix = (
            "install XRT's plugin for amdxdna (libxrt_driver_xdna.so.2), then xrt-smi examine "
            "must list the NPU"
        )
        return Opened(said=said["refused"], fix=fix)
    info = said["info"]
    return Opened(name=info["name"], version=_version(info["host"]))


def _version(host: str) -> str:
    """XRT's keys differ from version to version."""
    try:
        said = json.loads(host)
        return str(said.get("version") or said["xrt"]["version"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""

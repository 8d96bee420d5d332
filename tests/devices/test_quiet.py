"""Nothing of what a model is asked leaves the machine: onnxruntime is told to send nothing."""

import os
import subprocess
import sys
from pathlib import Path

# What decides about it: ours, and its own guess at a machine of nobody.
CHOICES = {"ORT_DISABLE_TELEMETRY", "CI", "GITHUB_ACTIONS", "TF_BUILD"}
ASK = """
import flm.devices.cpu
import onnxruntime
assert onnxruntime.get_available_providers()
"""


def test_onnxruntime_keeps_no_usage_data(tmp_path: Path) -> None:
    """Where it would send any, it makes itself a device id and a database first."""
    shown = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    environ = {key: value for key, value in os.environ.items() if key not in CHOICES} | shown
    subprocess.run([sys.executable, "-c", ASK], env=environ, check=True)
    assert list(tmp_path.iterdir()) == []

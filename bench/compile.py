"""What compiling a model of four billion weights takes, and then loading it:

    python -m bench.compile

The file has Qwen3.5 4B's shape and Q4_K_M's mix of types; its blocks are random bytes with scales
of a usual size. Written tensor by tensor into .cache/bench and removed afterwards, like the bundle.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.likes import FOUR_B
from bench.random_models import write
from bench.rows import ROOT, keep
from bench.shapes import FOLDER
from flm.graph.weights.gguf import GgufFile

SECONDS_MOST, PEAK_MIB_MOST = 90, 3 * 1024
NAME, TYPE = "qwen35-4B", "Q4_K_M"

COMPILE = """
import json, resource, sys, time
from pathlib import Path
from flm.models.compile import compile_model
start = time.perf_counter(), time.process_time()
compile_model(Path(sys.argv[1]), Path(sys.argv[2]))
print(json.dumps({
    "seconds": time.perf_counter() - start[0],
    "processor_s": time.process_time() - start[1],
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""
LOAD = """
import json, sys, time
from pathlib import Path
from flm.devices.cpu import CpuDevice
from flm.graph.bundle import Bundle
bundle = Bundle.open(Path(sys.argv[2]))
device = CpuDevice(threads=2)
start = time.perf_counter(), time.process_time()
program = device.load(bundle.graph("float32", 8192))
lines = Path("/proc/self/status").read_text().splitlines()
status = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("Rss", "Vm"))}
print(json.dumps({
    "load_s": time.perf_counter() - start[0],
    "processor_s": time.process_time() - start[1],
    "loaded_mib": int(status["VmRSS"]) / 1024,
    "own_mib": int(status["RssAnon"]) / 1024,
    "load_peak_mib": int(status["VmHWM"]) / 1024,
}))
"""


def _run(program: str, *arguments: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    result: dict[str, Any] = json.loads(subprocess.check_output(command, cwd=ROOT))
    return result


def main() -> None:
    from flm.hub.pull import pull
    from flm.settings import Settings

    settings = replace(Settings(), model_path=ROOT / ".cache" / "flm")
    vocabulary = GgufFile(pull("smollm2:135m", settings, progress=lambda *_: None))
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        source, bundle = Path(folder) / f"{NAME}.{TYPE}.gguf", Path(folder) / "bundle"
        write(source, FOUR_B, TYPE, vocabulary)
        compiled = _run(COMPILE, source, bundle)
        keep(
            "compile",
            f"{NAME} {TYPE}, compiled",
            source_mib=source.stat().st_size // 2**20,
            bundle_mib=sum(file.stat().st_size for file in bundle.iterdir()) // 2**20,
            **compiled,
            seconds_most=SECONDS_MOST,
            peak_mib_most=PEAK_MIB_MOST,
        )
        source.unlink()
        keep("compile", f"{NAME} {TYPE}, loaded", **_run(LOAD, source, bundle))
        shutil.rmtree(bundle)


if __name__ == "__main__":
    main()

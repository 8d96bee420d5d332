"""Every kernel of a package on the device, against its golden vectors.

One process a kernel: what hangs or crashes takes no other with it, and each begins with a context
of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from flm.devices.xrt.load import load
from flm.devices.xrt.package import SCALARS, KernelEntry, Package
from flm.devices.xrt.toolchains import MlirAie, Simulator, Toolchain

NPU, NPU_SIM = "npu", "npu-sim"
PATIENCE_S = 120.0
RUN_MS = 20_000
DPU = 3  # the opcode of a run that has an instruction stream
COMPLETED = 4
TIMED_RUNS = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """`said`: what went wrong, or "". Errors are of the largest magnitude, by buffer; `run_us` is
    the median of some runs, `moved_bytes` what its buffers have, the memory it keeps aside.
    """

    kernel: str
    fine: bool
    said: str
    errors: Mapping[str, float]
    run_us: float | None
    moved_bytes: int


def module_of(device: str) -> ModuleType:
    """pyxrt's API: the real module's or fakexrt's."""
    if device == NPU_SIM:
        from npu_kernels import fakexrt

        return fakexrt
    import pyxrt

    real: ModuleType = pyxrt
    return real


def toolchain_of(device: str) -> Toolchain:
    return Simulator() if device == NPU_SIM else MlirAie()


def self_test(package: Package, device: str) -> Iterable[Outcome]:
    for entry in package.kernels:
        yield _apart(package, entry, device)


def _apart(package: Package, entry: KernelEntry, device: str) -> Outcome:
    command = [sys.executable, "-m", __name__, str(package.folder), entry.name, device]
    moved = _moved_bytes(entry)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return Outcome(entry.name, False, f"no end within {PATIENCE_S:g} s", {}, None, moved)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        said = f"signal {-done.returncode}" if done.returncode < 0 else last
        return Outcome(entry.name, False, said, {}, None, moved)
    return Outcome(**json.loads(done.stdout.strip().splitlines()[-1]))


def tested(xrt: ModuleType, package: Package, entry: KernelEntry, runs: int) -> Outcome:
    """Here and now, on device 0: once against the vectors, then `runs` times for their time."""
    from npu_kernels.golden import closeness, golden

    vectors = golden(entry.folder, entry.design, entry.parameters)
    device = xrt.device(0)
    context = xrt.hw_context(device, device.register_xclbin(xrt.xclbin(str(package.xclbin))))
    kernel = xrt.kernel(context, entry.name)
    out = xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
    back = xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
    words = entry.words(**vectors.values)
    instructions = xrt.bo(device, words.nbytes, xrt.bo.flags.cacheable, kernel.group_id(1))
    instructions.write(words, 0)
    instructions.sync(out)
    buffers = {}
    for number, (argument, data) in enumerate(zip(entry.arguments, vectors.before, strict=True)):
        group = kernel.group_id(SCALARS + number)
        buffer = xrt.bo(device, argument.nbytes, xrt.bo.flags.host_only, group)
        given = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        assert len(given) <= argument.nbytes, (argument, len(given))
        buffer.write(np.pad(given, (0, argument.nbytes - len(given))), 0)
        buffer.sync(out)
        buffers[argument.name] = buffer
    run = xrt.run(kernel)
    for number, given in enumerate((DPU, instructions, words.nbytes, *buffers.values())):
        run.set_arg(number, given)
    state = _started(run)
    errors: dict[str, float] = {}
    said = "" if state == COMPLETED else f"it ended in state {state}"
    if not said:
        for expected in vectors.after:
            buffers[expected.name].sync(back)
            found = np.frombuffer(buffers[expected.name].map(), np.uint8)
            near = closeness(entry.folder, expected, found)
            errors[near.name] = near.error
            if not near.fine:
                said = f"{near.name} is {near.error:.1e} off, cosine {near.cosine:.8f}"
    took = _timed(run, runs) if not said and runs else None
    return Outcome(entry.name, not said, said, errors, took, _moved_bytes(entry))


def _started(run: Any) -> int:
    run.start()
    return int(run.wait(RUN_MS))


def _timed(run: Any, runs: int) -> float:
    """Median, in microseconds. What the vectors were is overwritten: only the time counts."""
    took = []
    for _ in range(runs):
        start = time.perf_counter()
        _started(run)
        took.append(time.perf_counter() - start)
    return float(np.median(took)) * 1e6


def _moved_bytes(entry: KernelEntry) -> int:
    return sum(a.nbytes for a in entry.arguments if a.direction != "memory")


def main(folder: str, name: str, device: str) -> None:
    package = load(Path(folder), toolchain_of(device))
    (entry,) = (each for each in package.kernels if each.name == name)
    runs = 0 if device == NPU_SIM else TIMED_RUNS
    outcome = tested(module_of(device), package, entry, runs)
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

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
from typing import TYPE_CHECKING

import numpy as np

from flm.devices.xrt.load import load
from flm.devices.xrt.named import module_of, toolchain_of
from flm.devices.xrt.package import KernelEntry, Package, Wanted
from flm.errors import DeviceLost
from flm.settings import NPU_SIM

if TYPE_CHECKING:
    from flm.devices.xrt.kernels import Kernels, Run

PATIENCE_S = 120.0
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
    from flm.devices.xrt.kernels import Kernels

    kernels = Kernels(xrt, xrt.device(0), package)
    errors: dict[str, float] = {}
    try:
        said, took = _compared(kernels, entry, runs, errors)
    except DeviceLost as lost:
        said, took = lost.message, None
    kernels.close()
    return Outcome(entry.name, not said, said, errors, took, _moved_bytes(entry))


def _compared(
    kernels: Kernels, entry: KernelEntry, runs: int, errors: dict[str, float]
) -> tuple[str, float | None]:
    """What is wrong, and the median of `runs` in microseconds. Notes how far each buffer is off."""
    from flm.devices.xrt.buffers import Store
    from npu_kernels.golden import closeness, golden

    vectors = golden(entry.folder, entry.design, entry.parameters)
    kernel = kernels.kernel(Wanted(entry.folder, entry.design, entry.parameters))
    kernel.at(vectors.values)
    store, spans = Store(kernels.data), {}
    for argument, data in zip(entry.arguments, vectors.before, strict=True):
        span = spans[argument.name] = store.take(argument.nbytes)
        given = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        span.array[: len(given)] = given
        span.to_device()
    run = kernel.run(list(spans.values()))
    run()
    for expected in vectors.after:
        spans[expected.name].from_device()
        near = closeness(entry.folder, expected, spans[expected.name].array)
        errors[near.name] = near.error
        if not near.fine:
            return f"{near.name} is {near.error:.1e} off, cosine {near.cosine:.8f}", None
    return "", _timed(run, runs) if runs else None


def _timed(run: Run, runs: int) -> float:
    """What the vectors made is overwritten: only the time counts."""
    took = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
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

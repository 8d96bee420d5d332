"""What this machine, or the container we are in, lets us use."""

import os
from pathlib import Path

CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
CGROUP_CPU = Path("/sys/fs/cgroup/cpu.max")
CPU_INFO = Path("/proc/cpuinfo")
# As Linux calls those that onnxruntime chooses its kernels by.
INSTRUCTION_SETS = {
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni"),
    *("avx_vnni", "avx_vnni_int8", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
}


def memory_bytes() -> int:
    """Memory we may use: the machine's, or less where a container is held to less."""
    import psutil

    total = int(psutil.virtual_memory().total)
    for path in CGROUP_LIMITS:
        try:
            limit = path.read_text().strip()
        except OSError:
            continue
        if limit.isdigit():
            total = min(total, int(limit))
    return total


def cores_physical() -> int:
    """Physical cores we may run on: one thread a core is fastest for matrix products."""
    import psutil

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    counts = (psutil.cpu_count(logical=False) or 1, usable or 1, _cores_of_container())
    return max(1, min(count for count in counts if count is not None))


def _cores_of_container() -> int | None:
    """What a container is held to, in whole cores: more threads than that only wait."""
    try:
        quota, _, period = CGROUP_CPU.read_text().partition(" ")
        return int(quota) // int(period)
    except (OSError, ValueError):  # no container, or no limit: "max 100000"
        return None


def instruction_sets() -> tuple[str, ...]:
    """Those of this CPU that numbers may depend on, sorted; the architecture comes first."""
    import platform

    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return platform.machine(), *sorted(INSTRUCTION_SETS.intersection(flags.split()))

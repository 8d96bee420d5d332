"""A row of results: one JSON line with the machine and the commit it was measured on."""

import json
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
CHANGES = ("status", "--porcelain", "--", ".", ":(exclude)bench/results")


def machine() -> dict[str, Any]:
    import psutil

    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": psutil.cpu_count(logical=False),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        **_versions("onnxruntime", "xllamacpp"),
    }


def _versions(*packages: str) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def commit() -> str:
    """The commit, and a plus where the tree differs from it, but for the rows of results."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + ("+" if git(*CHANGES) else "")


def keep(bench: str, figure: str, **values: Any) -> None:
    """Append a row and show it."""
    row = {
        "bench": bench,
        "figure": figure,
        **values,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{bench}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    shown = {name: value for name, value in values.items() if not isinstance(value, list)}
    print(f"{figure:32}", *(f"{name}={_short(value)}" for name, value in shown.items()), flush=True)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)

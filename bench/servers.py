"""Starts the servers that are compared, each a process of its own, on free ports."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

DISK = "--prefix-disk-path"
START_S_MAX, STOP_S_MAX, REST_S_MAX = 300, 10, 120
LOOK_S, BUSY = 0.25, 0.1  # it rests when less than this share of one core is used for so long
CACHE_RAM_MIB = 8192  # llama.cpp's defaults
VERBOSITY = 3

PEER = """
import sys, time
import xllamacpp
gguf, tower = sys.argv[1:3]
port, slots, threads, context, cache_ram, verbosity = map(int, sys.argv[3:])
p = xllamacpp.CommonParams()
p.model.path, p.port, p.n_parallel, p.n_ctx, p.n_gpu_layers = gguf, port, slots, context, 0
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
p.use_jinja, p.cache_ram_mib, p.verbosity = True, cache_ram, verbosity
p.mmproj.path, p.mmproj_use_gpu = tower, False
server = xllamacpp.Server(p)
while True:
    time.sleep(1)
"""


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    url: str
    pid: int

    def rest(self) -> None:
        """Return once it does nothing any more for what it was asked: not at the next one's cost.

        flm reads ahead after a reply, llama.cpp may still save.
        """
        deadline = time.monotonic() + REST_S_MAX
        used_s = self._cpu_s()
        while time.monotonic() < deadline:
            time.sleep(LOOK_S)
            before_s, used_s = used_s, self._cpu_s()
            if used_s - before_s < BUSY * LOOK_S:
                return
        raise SystemExit(f"{self.name} is still busy after {REST_S_MAX} s")

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def flm_server(
    model: str,
    *,
    threads: int,
    lanes: int,
    flags: Sequence[str] = (),
    log: Path | None = None,
    home: Path | None = None,
) -> Iterator[Server]:
    """What it says goes to `log`, or nowhere. It knows nothing of earlier runs, unless asked to;
    what it compiles stays in `home`, or where flm keeps models.
    """
    if DISK not in flags:
        flags = ("--prefix-disk-mb", "0", *flags)
    port = free_port()
    command = [sys.executable, "-m", "flm", "serve", model, "--port", str(port)]
    command += ["--threads", str(threads), "--lanes", str(lanes), *flags]
    environ = {"FLM_MODEL_PATH": str(home)} if home else {}
    with _process("flm", command, port, log, environ) as server:
        yield server


@contextmanager
def llama_cpp_server(
    gguf: Path,
    *,
    threads: int,
    slots: int,
    context: int,
    cache_ram_mib: int = CACHE_RAM_MIB,
    log: Path | None = None,
    tower: Path | None = None,
) -> Iterator[Server]:
    """llama.cpp's own HTTP server, from the xllamacpp wheel; `context` is for all slots, `tower`
    its mmproj file.
    """
    port = free_port()
    verbosity = VERBOSITY if log is None else VERBOSITY + 1  # one more tells of its caches
    sizes = map(str, (port, slots, threads, context, cache_ram_mib, verbosity))
    command = [sys.executable, "-c", PEER, str(gguf), str(tower or ""), *sizes]
    with _process("llama.cpp", command, port, log) as server:
        yield server


@contextmanager
def _process(
    name: str,
    command: Sequence[str],
    port: int,
    log: Path | None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    url = f"http://127.0.0.1:{port}"
    with open(log or os.devnull, "ab") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=said, env={**os.environ, **(environ or {})}
        )
    try:
        _wait_until_ready(url, process)
        yield Server(name, url, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(timeout=STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"{process.args} ended with {process.returncode}")
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"{url} did not start within {START_S_MAX} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

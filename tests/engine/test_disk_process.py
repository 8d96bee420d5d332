"""A server that is killed or stopped, and the next one: what it has read is not read again."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

TINY = Path(__file__).parents[1] / "fixtures" / "llama" / "llama.Q4_K_M.gguf"
TEXT = "It was a bright cold day in April, and the clocks were striking thirteen. " * 4
PATIENCE_S = 60


@contextmanager
def served(home: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["serve", str(TINY), "--ctx-len", "512", "--port", str(port), "--host", "127.0.0.1"]
    own = {
        "HOME": str(home),
        "FLM_MODEL_PATH": str(home / "kept"),
        "FLM_PREFIX_CACHE_MB": "16",
        "FLM_PREFIX_DISK_MB": "64",
        "FLM_PREFIX_MIN_GAIN": "8",
    }
    command = [sys.executable, "-m", "flm", *words, "--quiet"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | own, cwd=home
    ) as server:
        try:
            assert server.stdout is not None
            assert any("Press Ctrl+C" in line for line in iter(server.stdout.readline, ""))
            yield f"http://127.0.0.1:{port}", server
        finally:
            server.kill()


def ask(base: str) -> tuple[int, str]:
    """(tokens that were kept, what it says)."""
    body: dict[str, Any] = {
        "model": TINY.stem,
        "messages": [{"role": "user", "content": TEXT}],
        "max_tokens": 8,
        "temperature": 0,
    }
    answer = httpx.post(f"{base}/v1/chat/completions", json=body, timeout=PATIENCE_S).json()
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached, answer["choices"][0]["message"]["content"]


def written(home: Path) -> None:
    """Returns once the index has a snapshot: rows lie there under their own name after that."""
    until = time.monotonic() + PATIENCE_S
    while not list((home / "kept" / "prefix").glob("*/*.rows")):
        assert time.monotonic() < until, "nothing was written"
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_the_next_server_goes_on_from_what_the_last_has_read(tmp_path: Path, how: int) -> None:
    with served(tmp_path) as (base, server):
        cached, said = ask(base)
        assert cached == 0
        if how == signal.SIGKILL:  # a quiet second later it is written
            written(tmp_path)
            time.sleep(0.2)
        server.send_signal(how)
        assert server.wait(PATIENCE_S) == (-how if how == signal.SIGKILL else 0)
    with served(tmp_path) as (base, _):
        cached, again = ask(base)
    assert cached > 0
    assert again == said

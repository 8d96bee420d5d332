"""The commands over a real, tiny model: run, bench and serve, from its file to the reply."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from flm import console
from flm.cli.app import run
from flm.llm import LLM

TINY = Path(__file__).parents[1] / "fixtures" / "llama" / "llama.Q4_K_M.gguf"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FLM_MODEL_PATH", str(tmp_path / "flm"))
    monkeypatch.setenv("FLM_PREFIX_CACHE_MB", "16")
    yield tmp_path
    console.configure()


def test_a_prompt_is_answered_and_nothing_else_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["run", str(TINY), "Say hello.", "--ctx-len", "512"]) == 0
    out, err = capsys.readouterr()
    assert out.strip()
    assert "[FLM]" not in out
    assert err == ""


def test_a_bench_writes_the_numbers_that_it_shows(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "plan.json").write_text(json.dumps({"max_length": 64, "iterations": 2}))
    assert run(["bench", str(TINY), "-i", "plan.json", "--plot", "plot.svg"]) == 0
    assert "Prefill Speed (tok/s)" in capsys.readouterr().out
    (file,) = home.glob("bench_llama.Q4_K_M_*_cpu.csv")
    (row,) = csv.DictReader(file.read_text().splitlines())
    assert row["context_length"] == "64"
    assert (home / "plot.svg").read_text().count("<circle") == 3
    assert float(row["prefill_avg"]) > 0
    assert float(row["ttft_min"]) <= float(row["ttft_max"])


def test_a_model_that_is_none_is_told_in_two_lines(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "odd.gguf").write_bytes(b"not at all a model")
    assert run(["run", "./odd.gguf", "hi"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("[ERROR]  ")


def test_serve_as_lemonade_starts_it_answers_and_stops(home: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["serve", str(TINY), "--ctx-len", "512", "--port", str(port), "--host", "127.0.0.1"]
    command = [sys.executable, "-m", "flm", *words, "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as server:
        assert server.stdout is not None
        lines = []
        for line in server.stdout:
            lines.append(line)
            if "Press Ctrl+C" in line:
                break
        base = f"http://127.0.0.1:{port}"
        assert f"[FLM]  Using user-specified port: {port}\n" in lines
        assert any(line.startswith(f"  curl {base}/v1/chat/completions") for line in lines)
        assert httpx.get(f"{base}/api/tags").status_code == 200
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        answer = httpx.post(f"{base}/v1/chat/completions", json=body | {"model": TINY.stem})
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] <= 4
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0


def test_serve_without_a_model_loads_the_one_that_is_asked_for(home: Path) -> None:
    assert run(["pull", str(TINY)]) == 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-P",
        "-m",
        "flm",
        "serve",
        "--port",
        str(port),
        "--ctx-len",
        "99999",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as server:
        assert server.stdout is not None
        assert any(f"serves what requests name: {TINY.stem}" in line for line in server.stdout)
        base = f"http://127.0.0.1:{port}"
        (listed,) = httpx.get(f"{base}/v1/models").json()["data"]
        body = {"model": TINY.stem, "prompt": "a", "max_tokens": 2}
        assert httpx.post(f"{base}/v1/completions", json=body, timeout=60).status_code == 200
        (loaded,) = httpx.get(f"{base}/v1/models").json()["data"]
        assert (listed["loaded"], loaded["loaded"]) == (False, True)
        assert loaded["context_length"] < 99999
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0


def test_the_python_facade_reads_the_environment_as_the_commands_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLM_MODEL_PATH", str(tmp_path))
    monkeypatch.setenv("FLM_CTX_LEN", "512")
    with LLM.load(str(TINY)) as llm:
        assert llm.resident.context_length == 512
    assert any(tmp_path.iterdir())

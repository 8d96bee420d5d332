"""What AMD's Lemonade does with the `flm` on its path, word for word: it asks whether the machine
is ready, lists, pulls and serves, waits for /api/tags, and forwards requests.

As its sources have it (lemonade-sdk/lemonade, src/cpp/server/backends/fastflowlm).
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from bench.servers import free_port
from bench.shapes import FOLDER
from flm import __version__

pytestmark = pytest.mark.slow

CHATS, EMBEDS = "smollm2:135m", "all-minilm:l6-v2"
HELLO = [{"role": "user", "content": "hello"}]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "FLM_MODEL_PATH": str(FOLDER.parent / "flm"), **more}


def flm(*words: str, **more: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "flm", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment(**more))


def listed(*words: str) -> dict[str, Any]:
    """By name; its output is parsed whole."""
    return {each["name"]: each for each in json.loads(flm("list", *words).stdout)["models"]}


@contextmanager
def served(*words: str) -> Iterator[str]:
    """Its address, once it answers; it ends by SIGTERM."""
    port = free_port()
    command = [sys.executable, "-m", "flm", "serve", *words, "--port", str(port)]
    command += ["--host", "127.0.0.1", "--quiet"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment(FLM_DEVICE="cpu")
    ) as server:
        try:
            assert server.stdout is not None
            assert any("Press Ctrl+C" in line for line in server.stdout), "it ended"
            url = f"http://127.0.0.1:{port}"
            assert httpx.get(f"{url}/api/tags").status_code == 200
            yield url
        finally:
            server.terminate()
        assert server.wait(20) == 0


def test_it_learns_the_version_and_whether_the_machine_is_ready() -> None:
    assert json.loads(flm("version", "--json").stdout) == {"version": __version__}
    on_cpu, on_npu = (flm("validate", "--json", FLM_DEVICE=device) for device in ("cpu", "npu"))
    assert (on_cpu.returncode, json.loads(on_cpu.stdout)["ready"]) == (0, True)
    said = json.loads(on_npu.stdout)
    assert said["ready"] is (on_npu.returncode == 0)
    for why in ("amd_device_found", "all_fw_ok", "kernel_ok", "memlock_ok"):
        assert isinstance(said[why], bool)


def test_it_pulls_and_then_finds_what_is_installed() -> None:
    for words in ([], ["--force"]):
        pulled = flm("pull", CHATS, *words)
        assert pulled.returncode == 0, pulled.stderr
    assert CHATS in listed("--filter", "installed", "--quiet", "--json")
    model = listed("--json")[CHATS]
    assert model["installed"] is True
    assert model["footprint"] > 0
    assert model["url"].startswith("https://")
    assert "embeddings" not in model["label"], "or it would be served with --embed"


def test_it_chats_with_what_it_serves_by_the_name_in_the_list() -> None:
    flm("pull", CHATS)
    with served(CHATS, "--ctx-len", "2048") as url:
        body = {"model": CHATS, "messages": HELLO, "max_tokens": 4}
        reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        assert reply.json()["choices"][0]["message"]["content"]
        streamed = httpx.post(f"{url}/v1/chat/completions", json=body | {"stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n")
        text = {"model": CHATS, "prompt": "Once", "max_tokens": 4}
        assert httpx.post(f"{url}/v1/completions", json=text).json()["choices"][0]["text"]


def test_it_gets_embeddings_by_its_own_name_for_the_model() -> None:
    flm("pull", EMBEDS)
    assert listed("--json")[EMBEDS]["label"] == ["embeddings"]
    with served("--embed", "1") as url:
        body = {"model": f"{EMBEDS.replace(':', '-')}-FLM", "input": ["the sky", "the sea"]}
        reply = httpx.post(f"{url}/v1/embeddings", json=body, timeout=60)
        assert [len(each["embedding"]) for each in reply.json()["data"]] == [384, 384]

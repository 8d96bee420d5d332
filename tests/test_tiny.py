"""The product in ten tests, in seconds: what must work before anything else is looked at.

One real server process with a tiny model that is made here, asked over a real socket.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.models.gguf_writer import tiny_llama
from tests.pure.vocabularies import byte_level

LONG = "It says the same thing again and again. " * 10  # over --prefix-min-gain


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("tiny")
    changes = {"llama.context_length": 1024, "tokenizer.chat_template": None}
    model = tiny_llama(folder / "tiny.gguf", tokenizer=byte_level(), **changes)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "flm",
        "serve",
        str(model),
        "--port",
        str(port),
        "--lanes",
        "2",
    ]
    environ = {**os.environ, "FLM_MODEL_PATH": str(folder)}
    log = (folder / "log").open("w")
    process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        _wait(client, process, folder / "log")
        yield client
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0
    log.close()


def _wait(client: httpx.Client, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)  # another process: nothing to wait on but its port
    pytest.fail(log.read_text())


def chat(client: httpx.Client, *contents: str, **fields: object) -> httpx.Response:
    roles = ["system", "user", "assistant", "user"]
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
    body = {"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0, **fields}
    return client.post("/v1/chat/completions", json=body)


def test_it_says_which_model_it_serves(server: httpx.Client) -> None:
    (model,) = server.get("/v1/models").json()["data"]
    assert (model["id"], model["context_length"]) == ("tiny", 1024)


def test_it_answers_a_chat(server: httpx.Client) -> None:
    reply = chat(server, "Be brief.", "Hello?", ignore_eos=True).json()
    assert reply["choices"][0]["message"]["role"] == "assistant"
    assert reply["usage"]["completion_tokens"] == 4


def test_a_stream_says_what_a_whole_reply_says(server: httpx.Client) -> None:
    whole = chat(server, "Be brief.", "Hello?").json()["choices"][0]["message"]["content"]
    text, lines = "", chat(server, "Be brief.", "Hello?", stream=True).text.split("\n\n")
    assert lines[-2] == "data: [DONE]"
    for line in lines:
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                text += choice["delta"].get("content") or ""
    assert text == whole


def test_a_second_conversation_reuses_the_system_prompt(server: httpx.Client) -> None:
    chat(server, LONG, "First question?")
    usage = chat(server, LONG, "Another one!").json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 64


def test_a_next_turn_reads_only_what_is_new(server: httpx.Client) -> None:
    first = chat(server, "Be brief.", LONG).json()
    said = first["choices"][0]["message"]["content"]
    usage = chat(server, "Be brief.", LONG, said, "And then?").json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 1


def test_an_identical_request_reads_nothing_and_says_the_same(server: httpx.Client) -> None:
    cold, warm = (chat(server, "Once more.", LONG).json() for _ in range(2))
    usage = warm["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"]
    assert warm["choices"] == cold["choices"]


def test_a_plain_completion_works(server: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": "A B C", "max_tokens": 3, "ignore_eos": True}
    assert server.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 3


def test_a_mistake_is_told_with_its_field_and_a_fix(server: httpx.Client) -> None:
    refused = chat(server, "a", "b", temperature=9)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "temperature"


def test_a_prompt_too_long_is_told_with_both_numbers(server: httpx.Client) -> None:
    refused = chat(server, "word " * 1000, "b")
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert "maximum context length is 1024 tokens" in refused.json()["error"]["message"]


def test_an_unknown_model_is_not_found(server: httpx.Client) -> None:
    assert chat(server, "a", "b", model="gpt-9").status_code == 404

"""The log: a line for each request that asks for work, and never a word of what was asked."""

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from flm.core.event import FinishReason, Usage
from flm.core.request import Priority
from flm.server.journal import account, note
from tests.server.house import House, in_process


def send(house: House, method: str, path: str, **fields: Any) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with in_process(house) as client:
            body = {"model": "tiny:1m", **fields} if method == "POST" else None
            return await client.request(method, path, json=body)

    return asyncio.run(ask())


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_one_line_without_its_words(
    house: House, stream: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    house.say("whispered")
    messages = [{"role": "user", "content": "secret"}]
    response = send(house, "POST", "/v1/chat/completions", messages=messages, stream=stream)
    (line,) = capsys.readouterr().out.splitlines()
    assert "secret" not in line
    assert "whispered" not in line
    count = len(house.requests[0].prompt.tokens)
    assert f"  in {count:>7,}  kept       0              out " in line
    assert "stop       POST /v1/chat/completions  tiny:1m  chatcmpl-" in line
    assert line.rpartition("  ")[2] in response.text


def test_a_refusal_is_a_line_with_its_code_and_field(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    send(house, "POST", "/v1/completions", prompt="secret", temperature=9)
    send(house, "POST", "/v1/completions", prompt="secret " * 600)
    first, second = capsys.readouterr().out.splitlines()
    assert "  400  " in first
    assert "invalid_request_error temperature" in first
    assert "context_length_exceeded" in second
    assert "secret" not in first + second


def test_polling_is_no_news(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("/health", "/v1/models", "/api/tags", "/nowhere"):
        send(house, "GET", path)
    assert capsys.readouterr().out == ""


def test_the_line_says_where_the_kept_tokens_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    usage = Usage(9_408, 9_391, 3, tier="host", kind="head")
    first = SimpleNamespace(request=SimpleNamespace(id="x"), spent=usage, reason=FinishReason.STOP)
    generation: Any = SimpleNamespace(choices=[SimpleNamespace(answer=first)])
    request: Any = SimpleNamespace(method="POST", scope={"path": "/v1/chat/completions"})
    note(request, 200, account(generation, ""), model="m", priority=Priority.AGENT)
    line = capsys.readouterr().out
    assert "  in   9,408  kept   9,391 host head    out      3  wait" in line
    assert "  m@agent  x" in line

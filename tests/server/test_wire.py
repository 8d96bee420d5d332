"""Bodies: bounded while they are read, strict when they are parsed."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from flm.errors import BadRequest
from flm.server.wire import DEPTH_MAX, encode, parse_object
from tests.server.house import SETTINGS, House, in_process

BODY = {"model": "tiny:1m", "messages": [{"role": "user", "content": "hello"}]}


def nested(depth: int) -> bytes:
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"5",
        b"null",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": \xff}',
        b'{"a": "\x00"}',
        b'{"a": ' + b"1" * 5000 + b"}",
        nested(DEPTH_MAX + 1),
        nested(100_000),
        b'{"a":' * 100_000,
    ],
    ids=lambda body: repr(body[:12]),
)
def test_what_is_not_a_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest) as refusal:
        parse_object(body)
    assert refusal.value.fix


def test_nesting_is_read_up_to_the_limit() -> None:
    assert parse_object(nested(DEPTH_MAX)).keys() == {"a"}


def test_half_an_emoji_becomes_a_replacement_and_a_whole_one_stays() -> None:
    value = parse_object(b'{"a\\ud83d": ["x\\ud83d\\ude00y", {"b": "\\udc00"}]}')
    assert value == {"a\ufffd": ["x😀y", {"b": "\ufffd"}]}


def test_a_byte_order_mark_is_passed_over() -> None:
    assert parse_object(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_any_text_can_be_sent_back() -> None:
    assert json.loads(encode({"a": "\ud800 😀 \x00"})) == {"a": "\ud800 😀 \x00"}


def post(house: House, content: bytes | AsyncIterator[bytes], **headers: str) -> httpx.Response:
    async def send() -> httpx.Response:
        settings = replace(SETTINGS, body_bytes_max=1024, messages_max=3)
        async with in_process(house, settings) as client:
            return await client.post("/v1/chat/completions", content=content, headers=headers)

    return asyncio.run(send())


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_is_json_whatever_its_content_type_says(house: House, kind: str) -> None:
    house.say("fine")
    response = post(house, encode(BODY), **{"content-type": kind})
    assert response.status_code == 200


def test_a_body_that_says_it_is_too_large_is_refused_unread(house: House) -> None:
    async def untouched() -> AsyncIterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    response = post(house, untouched(), **{"content-length": "1025"})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


def test_a_body_is_refused_as_soon_as_it_is_too_large(house: House) -> None:
    sent = []

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(1000):
            sent.append(256)
            yield b" " * 256

    assert post(house, endless()).status_code == 413
    assert sum(sent) <= 2048


def test_too_many_messages_are_counted_before_they_are_looked_at(house: House) -> None:
    response = post(house, encode({"model": "tiny:1m", "messages": [1] * 4}))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"
    assert "4 entries" in response.json()["error"]["message"]

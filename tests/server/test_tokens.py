"""What a model reads, as llama.cpp and vLLM tell it."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.server.asking import chat
from tests.server.house import House, in_process

HELLO: Any = [{"role": "user", "content": "hello"}]
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def post(house: House, path: str, **fields: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        async with in_process(house) as client:
            return await client.post(path, json=fields)

    return asyncio.run(send())


def told(house: House, path: str, **fields: Any) -> dict[str, Any]:
    response = post(house, path, **fields)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


@pytest.mark.parametrize("field", ["content", "prompt"])
def test_text_is_tokenized_as_the_model_reads_it_and_back(house: House, field: str) -> None:
    text = "Once upon a time, für 日本 <|im_end|>"
    reply = told(house, "/tokenize", **{field: text, "add_special_tokens": False})
    assert reply["tokens"] == house.tokenizer.encode(text)
    assert reply["count"] == len(reply["tokens"])
    assert reply["max_model_len"] == house.resident.context_length
    back = told(house, "/detokenize", tokens=reply["tokens"])
    assert back == {"content": text, "prompt": text}


def test_a_chat_is_tokenized_as_a_request_reads_it(house: House) -> None:
    house.say("so")
    asked: Any = {"messages": HELLO, "tools": [LOOK], "reasoning_effort": "none"}
    chat(house, **asked)
    read = list(house.requests[0].prompt.tokens)
    assert told(house, "/tokenize", model="tiny:1m", **asked)["tokens"] == read
    assert told(house, "/apply-template", **asked)["prompt"] == house.prompt_text(0)
    assert len(house.requests) == 1, "the model itself was asked for nothing"


def test_a_piece_that_is_part_of_a_character_is_told_as_bytes(house: House) -> None:
    pieces = told(house, "/tokenize", content="a 鷗", with_pieces=True)["tokens"]
    assert [each["id"] for each in pieces] == house.tokenizer.encode("a 鷗")
    as_bytes = [
        each["piece"].encode() if isinstance(each["piece"], str) else bytes(each["piece"])
        for each in pieces
    ]
    assert b"".join(as_bytes).decode() == "a 鷗"
    assert any(isinstance(each["piece"], list) for each in pieces)
    strings = told(house, "/tokenize", prompt="a b", return_token_strs=True)["token_strs"]
    assert "".join(strings) == "a b"


@pytest.mark.parametrize(
    ("path", "fields", "word"),
    [
        ("/tokenize", {}, "content is missing"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": "a", "parse_special": False}, "parse_special"),
        ("/tokenize", {"messages": HELLO, "add_generation_prompt": False}, "add_generation"),
        ("/tokenize", {"content": "a" * 10**6}, "maximum context length"),
        ("/detokenize", {"tokens": [10**9]}, "outside the vocabulary"),
        ("/detokenize", {"tokens": [-1]}, "outside the vocabulary"),
        ("/detokenize", {}, "tokens is missing"),
        ("/apply-template", {}, "messages is missing"),
    ],
)
def test_what_cannot_be_told_is_a_400_that_says_why(
    house: House, path: str, fields: dict[str, Any], word: str
) -> None:
    response = post(house, path, **fields)
    assert response.status_code == 400
    assert word in response.json()["error"]["message"]


def test_another_model_is_not_found(house: House) -> None:
    for path, fields in (("/tokenize", {"content": "a"}), ("/detokenize", {"tokens": [1]})):
        assert post(house, path, model="other:1b", **fields).status_code == 404

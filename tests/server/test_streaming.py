"""Server-sent events: what goes out, in which order, and what goes out while nothing does."""

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from flm.errors import DeviceFailed
from tests.server.house import House

HELLO = [{"role": "user", "content": "hello"}]


@contextmanager
def stream(url: str, path: str = "/v1/chat/completions", **fields: Any) -> Iterator[httpx.Response]:
    body = {"model": "tiny:1m", "stream": True, **fields}
    if path.startswith("/v1/chat"):
        body.setdefault("messages", HELLO)
    with httpx.stream("POST", url + path, json=body, timeout=20) as response:
        yield response


def data(response: httpx.Response) -> list[Any]:
    """The data of each event; the last one, [DONE], is checked and left out."""
    return events(response.iter_lines())


def events(lines: Iterable[str]) -> list[Any]:
    lines = [line for line in lines if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines), lines
    *chunks, done = [line.removeprefix("data: ") for line in lines]
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def chat(house: House, **fields: Any) -> list[dict[str, Any]]:
    with stream(house.url, **fields) as response:
        assert response.status_code == 200
        return data(response)


def wait_for(gate: threading.Event) -> None:
    assert gate.wait(10), "nobody opened the gate"


def deltas(chunks: list[dict[str, Any]], name: str = "content") -> list[str]:
    found = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    return [delta[name] for delta in found if delta.get(name)]


def test_headers_forbid_caching_and_buffering(house: House) -> None:
    house.say("hi")
    with stream(house.url) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        response.read()


def test_chunks_come_in_the_order_that_clients_expect(house: House) -> None:
    house.say("Hello there.")
    first, *middle, last = chat(house)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["object"] == "chat.completion.chunk"
    assert "".join(deltas(middle)) == "Hello there."
    assert last["choices"][0] | {"logprobs": None} == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in middle)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in [first, *middle])
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in [first, last]}) == 1


def test_usage_comes_only_when_asked_for(house: House) -> None:
    """lmstudio#713: agents cannot compact without it; strict clients cannot bear it unasked."""
    house.say("hi", "hi")
    asked = chat(house, stream_options={"include_usage": True})
    assert asked[-1]["choices"] == []
    usage = asked[-1]["usage"]
    assert usage["prompt_tokens"] == len(house.requests[0].prompt.tokens)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert all("usage" not in chunk for chunk in asked[:-1])
    unasked = chat(house)
    assert all(chunk["choices"] for chunk in unasked)
    assert all("usage" not in chunk for chunk in unasked)
    assert unasked[-1]["timings"]["prompt_n"] == usage["prompt_tokens"]


def test_an_emoji_split_over_tokens_is_streamed_whole(house: House) -> None:
    """tt-inference-server#2586: two U+FFFD instead."""
    text = "stop 🛑 und Ärger 字"
    house.say(text)
    assert len(house.tokenizer.encode("🛑")) > 1
    pieces = deltas(chat(house))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_an_emoji_cut_off_by_the_limit_is_one_replacement(house: House) -> None:
    house.say("🛑")
    assert "".join(deltas(chat(house, max_tokens=1))) == "\ufffd"


def test_no_part_of_a_stop_string_is_streamed(house: House) -> None:
    """SwiftLM#126: its first half leaked."""
    house.say("The quick brown fox jumps")
    chunks = chat(house, stop=["own fox"])
    assert "".join(deltas(chunks)) == "The quick br"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_what_was_held_back_for_a_stop_string_is_not_lost(house: House) -> None:
    """llama.cpp#9867: it was."""
    house.say("The quick brown f")
    assert "".join(deltas(chat(house, stop="own fox"))) == "The quick brown f"


def test_a_thought_is_streamed_as_reasoning(house: House) -> None:
    house.say("<think>\nlet me see</think>\n\nSeven.")
    chunks = chat(house, stream_options={"include_usage": True})
    assert "".join(deltas(chunks, "reasoning_content")) == "let me see"
    assert "".join(deltas(chunks, "reasoning")) == "let me see"
    assert "".join(deltas(chunks)) == "Seven."
    details = chunks[-1]["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < chunks[-1]["usage"]["completion_tokens"]


def test_logprobs_are_streamed_for_every_token(house: House) -> None:
    house.say("Hello there")
    chunks = chat(house, logprobs=True, top_logprobs=2)
    entries = [
        entry
        for chunk in chunks
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert "".join(entry["token"] for entry in entries) == "Hello there"


def test_several_choices_are_streamed_side_by_side(house: House) -> None:
    house.say("one", "two")
    chunks = chat(house, n=2, stream_options={"include_usage": True})
    said: dict[int, str] = {0: "", 1: ""}
    reasons = []
    for chunk in chunks[:-1]:
        choice = chunk["choices"][0]
        said[choice["index"]] += choice["delta"].get("content", "")
        reasons.append(choice["finish_reason"])
    assert said == {0: "one", 1: "two"}
    assert reasons.count("stop") == 2
    assert chunks[-1]["usage"]["completion_tokens"] > 2


def test_the_role_comes_when_a_lane_is_taken_and_pings_before_the_first_token(
    house: House,
) -> None:
    """ds4#151: nothing was sent while a long prompt was read, and clients hung up."""
    gate = threading.Event()
    house.during_passes(lambda: wait_for(gate))
    house.say("hi")
    with stream(house.url) as response:
        lines = (line for line in response.iter_lines() if line)
        assert '"role":"assistant"' in next(lines)
        assert [next(lines), next(lines)] == [": ping"] * 2
        gate.set()
        assert '"content":"' in next(lines)
        assert list(lines)[-1] == "data: [DONE]"


def test_a_queued_request_gets_pings_and_no_role(house: House) -> None:
    gate = threading.Event()
    house.during_passes(lambda: wait_for(gate))
    house.say(*["hi"] * 3)
    url = house.url
    with stream(url) as one, stream(url) as two, stream(url) as third:
        waiting = (line for line in third.iter_lines() if line)
        assert [next(waiting), next(waiting)] == [": ping"] * 2
        gate.set()
        assert '"role":"assistant"' in next(waiting)
        assert list(waiting)[-1] == "data: [DONE]"
        one.read()
        two.read()


def test_an_error_after_the_first_byte_is_told_in_the_stream(house: House) -> None:
    def fail() -> None:
        raise DeviceFailed("the device is on fire", fix="put it out")

    house.during_passes(fail)
    with stream(house.url) as response:
        assert response.status_code == 200
        *_, last = [line for line in response.iter_lines() if line]
        error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == "device_failed"
    assert error["type"] == "server_error"
    assert "on fire" in error["message"]


def test_an_error_before_the_first_byte_has_its_status(house: House) -> None:
    for fields in ({"temperature": 9}, {"logit_bias": {"999999": 1}}):
        with stream(house.url, **fields) as response:
            assert response.status_code == 400
            assert "error" in json.loads(response.read())
    with stream(house.url, messages=[{"role": "user", "content": "word " * 600}]) as response:
        assert json.loads(response.read())["error"]["code"] == "context_length_exceeded"


def test_a_completion_is_streamed(house: House) -> None:
    house.say(" upon a time")
    with stream(house.url, "/v1/completions", prompt="Once") as response:
        chunks = data(response)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " upon a time"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["object"] == "text_completion" for chunk in chunks)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_thought_that_the_prompt_opened_is_no_content(house: House, streamed: bool) -> None:
    """FLM#739, imp#509: only `</think>` appears in the reply, and the thought became the answer."""
    house.say("let me see</think>Seven.", "let me see and see")
    for expected, limit in ((("let me see", "Seven."), 400), (("let me", ""), 3)):
        fields: dict[str, Any] = {"think": True, "max_tokens": limit}
        if streamed:
            chunks = chat(house, **fields)
            thought, content = "".join(deltas(chunks, "reasoning_content")), "".join(deltas(chunks))
        else:
            body = {"model": "tiny:1m", "messages": HELLO, **fields}
            reply = httpx.post(house.url + "/v1/chat/completions", json=body).json()
            message = reply["choices"][0]["message"]
            thought, content = message["reasoning_content"], message["content"]
        assert thought.startswith(expected[0])
        assert content == expected[1]
        assert house.prompt_text().endswith("<think>\n")


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({"think": True}, True),
        ({"think": False, "reasoning_effort": "high"}, False),
        ({"think": "low"}, True),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"enable_thinking": True}, True),
        ({"reasoning_effort": "low"}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "minimal"}, True),
        ({"chat_template_kwargs": {"thinking": True}}, True),
        ({"chat_template_kwargs": {"reasoning_effort": "none"}}, False),
        ({"reasoning": {"effort": "medium"}}, True),
        ({"reasoning": {"effort": "none"}}, False),
        ({"reasoning": {"enabled": True}}, True),
        ({"reasoning": {"enabled": False, "effort": "high"}}, False),
        ({}, False),
    ],
)
def test_thinking_is_switched_by_any_field_that_clients_use(
    house: House, fields: dict[str, Any], thinks: bool
) -> None:
    house.say("fine")
    chat(house, **fields)
    assert house.prompt_text().endswith("<think>\n") is thinks

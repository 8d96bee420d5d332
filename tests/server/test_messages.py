"""Anthropic's dialect: what its bodies mean, and its events in their order."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from flm.errors import DeviceFailed
from flm.settings import Settings
from tests.server.asking import chat
from tests.server.house import SETTINGS, House, in_process

HELLO: Any = [{"role": "user", "content": "hello"}]
LOOK = {"name": "look", "description": "to look", "input_schema": {"type": "object"}}
CALL = '<tool_call>{"name": "look", "arguments": {"at": "the sky"}}</tool_call>'
MARK = {"cache_control": {"type": "ephemeral"}}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def post(
    house: House,
    path: str = "/v1/messages?beta=true",
    *,
    settings: Settings = SETTINGS,
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> httpx.Response:
    """A field that is None is left out."""
    body = {"model": "tiny:1m", "max_tokens": 200, "messages": HELLO, **fields}
    sent = {name: value for name, value in body.items() if value is not None}

    async def send() -> httpx.Response:
        async with in_process(house, settings) as client:
            return await client.post(path, json=sent, headers=headers)

    return asyncio.run(send())


def ask(house: House, **fields: Any) -> dict[str, Any]:
    response = post(house, **fields)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def refused(house: House, status: int = 400, **fields: Any) -> dict[str, str]:
    response = post(house, **fields)
    assert response.status_code == status, response.text
    body = response.json()
    assert body["type"] == "error"
    assert body["error"].keys() == {"type", "message"}
    error: dict[str, str] = body["error"]
    return error


def stream(house: House, **fields: Any) -> list[dict[str, Any]]:
    """The events, each named as its data says."""
    response = post(house, stream=True, **fields)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    found = []
    for frame in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return [event for event in found if event["type"] != "ping"]


def prompt_as_chat(house: House, messages: list[Any], **fields: Any) -> str:
    """What OpenAI's dialect makes of it."""
    house.say("so")
    chat(house, messages=messages, **fields)
    return house.prompt_text()


# --- replies ---


def test_a_reply_is_a_message(house: House) -> None:
    house.say("Hello.")
    reply = ask(house)
    assert reply["id"].startswith("msg_")
    assert (reply["type"], reply["role"], reply["model"]) == ("message", "assistant", "tiny:1m")
    assert reply["content"] == [{"type": "text", "text": "Hello.", "citations": None}]
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("end_turn", None)
    assert reply["usage"]["input_tokens"] == len(house.requests[0].prompt.tokens)
    assert reply["usage"]["output_tokens"] == len(house.tokenizer.encode("Hello.")) + 1


def test_why_a_reply_ended(house: House) -> None:
    house.say("The quick brown fox", "The quick brown fox")
    stopped = ask(house, stop_sequences=["zebra", "own f"])
    assert stopped["content"][0]["text"] == "The quick br"
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "own f")
    cut = ask(house, max_tokens=2)
    assert (cut["stop_reason"], cut["stop_sequence"]) == ("max_tokens", None)


def test_more_tokens_than_there_is_room_for_are_clamped(house: House) -> None:
    house.say("hi")
    ask(house, max_tokens=64_000)
    (request,) = house.requests
    assert len(request.prompt.tokens) + request.max_tokens == 512


def test_thought_text_and_calls_are_blocks_in_their_order(house: House) -> None:
    house.say(f"<think>hm</think>I look.\n{CALL}")
    reply = ask(house, tools=[LOOK], thinking={"type": "adaptive"})
    thought, said, call = reply["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "hm")
    assert thought["signature"]  # without one, the AI SDK does not send it back
    assert said["text"] == "I look."
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "look", {"at": "the sky"})
    assert reply["stop_reason"] == "tool_use"
    assert reply["usage"]["output_tokens_details"]["thinking_tokens"] > 0


def test_events_come_in_the_order_that_clients_expect(house: House) -> None:
    house.say(f"<think>hm</think>I look.\n{CALL}\n{CALL}")
    events = stream(house, tools=[LOOK])
    start, *middle, delta, stop = events
    assert start["type"] == "message_start"
    assert start["message"]["content"] == []
    assert start["message"]["stop_reason"] is None
    assert start["message"]["usage"]["input_tokens"] == len(house.requests[0].prompt.tokens)
    assert (delta["type"], delta["delta"]["stop_reason"]) == ("message_delta", "tool_use")
    assert delta["usage"]["output_tokens"] > 10
    assert stop == {"type": "message_stop"}
    blocks: list[dict[str, Any]] = []
    opened = False
    for event in middle:
        if event["type"] == "content_block_start":
            assert not opened, "the block before is still open"
            blocks.append(event["content_block"] | {"said": {}})
        else:
            assert opened
        opened = event["type"] != "content_block_stop"
        assert event["index"] == len(blocks) - 1
        if event["type"] == "content_block_delta":
            kind, field = event["delta"]
            said = blocks[-1]["said"]
            said[event["delta"][kind]] = said.get(event["delta"][kind], "") + event["delta"][field]
    assert not opened
    thought, said, *calls = [block["said"] for block in blocks]
    assert thought["thinking_delta"] == "hm"
    assert thought["signature_delta"]
    assert said == {"text_delta": "I look."}
    assert [block["name"] for block in blocks[2:]] == ["look", "look"]
    assert blocks[2]["id"] != blocks[3]["id"]
    assert [json.loads(call["input_json_delta"]) for call in calls] == [{"at": "the sky"}] * 2


def test_a_call_cut_short_has_no_input_to_run(house: House) -> None:
    house.say(CALL)
    reply = ask(house, tools=[LOOK], max_tokens=len(house.tokenizer.encode(CALL)) // 2)
    assert reply["stop_reason"] == "max_tokens"
    assert not [block for block in reply["content"] if block["type"] == "tool_use"]


def test_what_was_read_before_is_counted_apart(house: House) -> None:
    house.say("a", "b")
    asked: Any = [{"role": "user", "content": "bird " * 100}]
    cold, warm = ask(house, messages=asked)["usage"], stream(house, messages=asked)
    tokens = len(house.requests[0].prompt.tokens)
    assert (cold["input_tokens"], cold["cache_read_input_tokens"]) == (tokens, 0)
    for usage in (warm[0]["message"]["usage"], warm[-2]["usage"]):
        assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (0, tokens)


# --- bodies ---


def test_a_conversation_means_the_same_as_in_openais_dialect(house: House) -> None:
    house.say("so")
    call = {"type": "tool_use", "id": "1", "name": "look", "input": {"at": "ß"}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [text("blue"), text("sky")]}
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    hidden = {"type": "redacted_thinking", "data": "abc"}
    ask(
        house,
        system=[text("Be brief."), text("Be kind.")],
        messages=[
            {"role": "user", "content": [text("Where?"), text("When?")]},
            {"role": "assistant", "content": [thought, hidden, text("I "), text("look."), call]},
            {"role": "user", "content": [result, text("And?")]},
            {"role": "system", "content": "Be quick."},
            {"role": "user", "content": "Now?"},
        ],
        tools=[LOOK, {"type": "web_search_20250305", "name": "web_search"}],
        metadata={"user_id": "u"},
        context_management={"edits": []},
    )
    function = {"name": "look", "description": "to look", "parameters": {"type": "object"}}
    called = {"id": "1", "function": {"name": "look", "arguments": '{"at": "ß"}'}}
    assert house.prompt_text() == prompt_as_chat(
        house,
        [
            {"role": "system", "content": "Be brief.\nBe kind."},
            {"role": "user", "content": "Where?\nWhen?"},
            {"role": "assistant", "content": "I look.", "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "1", "content": "blue\nsky"},
            {"role": "user", "content": "And?"},
            {"role": "system", "content": "Be quick."},
            {"role": "user", "content": "Now?"},
        ],
        tools=[{"type": "function", "function": function}],
    )


def test_a_later_system_message_goes_where_developers_messages_go(house: House) -> None:
    """Claude Code sends one, and some templates refuse it where it stands."""
    later: Any = [*HELLO, {"role": "system", "content": "Be quick."}, *HELLO]
    for policy, start in (
        ("inplace", "system\nBe brief.<"),
        ("into-system", "system\nBe brief.\n\nBe quick.<"),
    ):
        house.say("so")
        settings = replace(SETTINGS, developer_message_policy=policy)
        assert post(house, settings=settings, system="Be brief.", messages=later).status_code == 200
        assert house.prompt_text().startswith(f"<|im_start|>{start}")
    refusing = replace(SETTINGS, developer_message_policy="reject")
    error = refused(house, settings=refusing, system="Be brief.", messages=later)
    assert error["message"].startswith("messages[1] is a developer's")


@pytest.mark.parametrize(
    ("result", "seen"),
    [
        ({"content": "no such file", "is_error": True}, "Error: no such file"),
        ({"content": "Error: no such file", "is_error": True}, "Error: no such file"),
        ({"content": "<tool_use_error>no</tool_use_error>", "is_error": True}, "<tool_use_error>"),
        ({"content": "fine", "is_error": False}, "fine"),
        ({}, ""),
    ],
)
def test_a_result_that_is_an_error_says_so_once(
    house: House, result: dict[str, Any], seen: str
) -> None:
    house.say("so")
    call = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    block = {"type": "tool_result", "tool_use_id": "1", **result}
    ask(
        house,
        messages=[
            *HELLO,
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [block]},
        ],
    )
    assert f"<|im_start|>tool\n{seen}" in house.prompt_text()


@pytest.mark.parametrize(
    ("thinking", "thinks"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "enabled", "budget_tokens": 2048}, True),
        ({"type": "adaptive", "display": "summarized"}, True),
    ],
)
def test_thoughts_come_where_they_are_asked_for(
    house: House, thinking: dict[str, Any] | None, thinks: bool
) -> None:
    house.say("hm</think>so" if thinks else "so")
    reply = ask(house, thinking=thinking)
    assert house.prompt_text().endswith("<think>\n") == thinks
    kinds = ["thinking", "text"] if thinks else ["text"]
    assert [block["type"] for block in reply["content"]] == kinds


def test_sampling_is_the_requests(house: House) -> None:
    house.say("so")
    ask(house, temperature=0.5, top_p=0.25, top_k=5, model="tiny:1m@agent")
    sampling = house.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.25, 5)
    assert house.requests[0].priority.value == "agent"


def test_no_calls_are_read_where_none_are_wanted(house: House) -> None:
    house.say(CALL)
    reply = ask(house, tools=[LOOK], tool_choice={"type": "none"})
    assert reply["content"][0]["text"] == CALL
    assert "to look" in house.prompt_text()


def test_a_marked_part_is_kept_for_the_next_question_about_it(house: House) -> None:
    """Behind a result, too; and Claude Code's line that changes with every request is dropped."""
    house.say("a", "b")
    call = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "bird " * 60, **MARK}

    def asking(cch: str, question: str) -> dict[str, Any]:
        return ask(
            house,
            system=[
                text(f"x-anthropic-billing-header: cc_version=2.1; cch={cch};"),
                text("Rules."),
            ],
            messages=[
                *HELLO,
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [result, text(question)]},
            ],
        )["usage"]

    cold, warm = asking("aaaaa", "Which bird?"), asking("bbbbb", "How many?")
    assert "billing" not in house.prompt_text()
    assert cold["cache_read_input_tokens"] == 0
    assert warm["cache_read_input_tokens"] > 60
    assert "hint" in {boundary.kind.value for boundary in house.requests[1].prompt.boundaries}


def test_tokens_are_counted_without_an_answer(house: House) -> None:
    house.say("so")
    reply = ask(house, system="Be brief.", tools=[LOOK])
    count = post(
        house, "/v1/messages/count_tokens", max_tokens=None, system="Be brief.", tools=[LOOK]
    )
    assert count.json() == {"input_tokens": reply["usage"]["input_tokens"]}
    assert len(house.requests) == 1
    long: Any = [{"role": "user", "content": "bird " * 600}]
    assert post(house, "/v1/messages/count_tokens", messages=long).json()["input_tokens"] > 600


# --- what goes wrong ---


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [text("a"), {"type": "image"}]}]}, "no image"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            "messages[0].content[0] is a document",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0] is not a whole tool_result",
        ),
        (
            {"messages": [{"role": "assistant", "content": [text("a"), {"type": "tool_use"}]}]},
            "messages[0].content[1] is not a whole tool_use",
        ),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "look"}}, "tool_choice"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"messages": [{"role": "user", "content": "bird " * 600}]}, "prompt is too long: "),
    ],
)
def test_a_refusal_names_what_is_wrong(house: House, fields: dict[str, Any], word: str) -> None:
    error = refused(house, **fields)
    assert error["type"] == "invalid_request_error"
    assert word in error["message"]


def test_every_status_has_anthropics_word(house: House) -> None:
    assert refused(house, 404, model="claude-haiku-4-5")["type"] == "not_found_error"
    locked = Settings(api_keys=("key",))
    assert refused(house, 401, settings=locked)["type"] == "authentication_error"
    assert post(house, settings=locked, headers={"x-api-key": "key"}).status_code == 200
    foreign = {"origin": "https://evil.example"}
    assert refused(house, 403, headers=foreign)["type"] == "permission_error"
    small = Settings(api_keys=(), body_bytes_max=1024)
    assert refused(house, 413, settings=small, system="a" * 2048)["type"] == "request_too_large"
    assert refused(house, 404, path="/v1/messages/batches")["type"] == "not_found_error"


def test_what_fails_within_a_stream_is_told_in_it(house: House) -> None:
    def fail() -> None:
        raise DeviceFailed("the device is on fire", fix="put it out")

    house.during_passes(fail)
    *_, last = stream(house)
    assert last["type"] == "error"
    assert last["error"]["type"] == "api_error"
    assert "on fire" in last["error"]["message"]


def test_there_is_somebody_at_the_root(house: House) -> None:
    async def look() -> httpx.Response:
        async with in_process(house) as client:
            return await client.head("/")

    assert asyncio.run(look()).status_code == 200

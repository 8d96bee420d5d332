"""Anthropic's unmodified client library against a real server."""

from typing import Any

import pytest

from flm.errors import DeviceFailed
from tests.server.house import House

anthropic = pytest.importorskip("anthropic")
pytestmark = pytest.mark.slow

LOOK: Any = {
    "name": "look",
    "description": "to look",
    "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}},
}
CALL = '<tool_call>{"name": "look", "arguments": {"at": "the sky"}}</tool_call>'
ASKED: Any = {
    "model": "tiny:1m",
    "max_tokens": 200,
    "messages": [{"role": "user", "content": "hello"}],
}


@pytest.fixture
def client(house: House) -> Any:
    with anthropic.Anthropic(base_url=house.url, api_key="any", max_retries=0) as opened:
        yield opened


def test_it_gets_a_whole_message(house: House, client: Any) -> None:
    house.say("Hello.")
    message = client.messages.create(system="Be brief.", **ASKED)
    assert message.content[0].text == "Hello."
    assert message.stop_reason == "end_turn"
    assert message.usage.cache_read_input_tokens == 0


def test_it_puts_a_stream_together(house: House, client: Any) -> None:
    house.say(f"hm</think>I look.\n{CALL}")
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with client.messages.stream(tools=[LOOK], thinking=thinking, **ASKED) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_message()
    assert {"text", "thinking", "signature", "input_json", "message_stop"} <= kinds
    thought, said, call = message.content
    assert (thought.thinking, said.text, call.input) == ("hm", "I look.", {"at": "the sky"})
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens > 10


def test_it_goes_on_from_calls_and_thoughts(house: House, client: Any) -> None:
    house.say(f"hm</think>I look.\n{CALL}", "Blue.")
    asked = {**ASKED, "tools": [LOOK], "thinking": {"type": "adaptive"}}
    first = client.messages.create(**asked)
    result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "blue"}
    asked["messages"] = [
        *ASKED["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(**(asked | {"thinking": {"type": "disabled"}}))
    assert second.content[0].text == "Blue."
    assert "<|im_start|>tool\nblue" in house.prompt_text()
    assert second.usage.cache_read_input_tokens > 0


def test_it_counts_what_a_request_then_takes(house: House, client: Any) -> None:
    house.say("so", "so")
    asked: Any = {"model": "tiny:1m", "messages": [{"role": "user", "content": "bird " * 100}]}
    counted = client.messages.count_tokens(**asked).input_tokens
    usages = [client.messages.create(max_tokens=9, **asked).usage for _ in range(2)]
    assert [each.input_tokens for each in usages] == [counted, 0]
    assert usages[1].cache_read_input_tokens == counted


@pytest.mark.parametrize(
    ("fields", "kind", "word"),
    [
        ({"model": "claude-haiku-4-5"}, "NotFoundError", "not_found_error"),
        ({"max_tokens": 0}, "BadRequestError", "invalid_request_error"),
        ({"tool_choice": {"type": "any"}}, "BadRequestError", "tool_choice"),
        (
            {"messages": [{"role": "user", "content": "bird " * 600}]},
            "BadRequestError",
            "prompt is too long",
        ),
    ],
)
def test_it_raises_by_status(client: Any, fields: dict[str, Any], kind: str, word: str) -> None:
    with pytest.raises(getattr(anthropic, kind), match=word):
        client.messages.create(**(ASKED | fields))


def test_it_raises_on_an_error_inside_a_stream(house: House, client: Any) -> None:
    def fail() -> None:
        raise DeviceFailed("the device is on fire", fix="put it out")

    house.during_passes(fail)
    with (
        pytest.raises(anthropic.APIError, match="on fire"),
        client.messages.stream(**ASKED) as stream,
    ):
        stream.get_final_message()

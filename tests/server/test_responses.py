"""OpenAI's Responses: what their items mean, and their events in order."""

import json
from functools import partial
from typing import Any

import pytest

from flm.errors import DeviceFailed
from tests.server import asking
from tests.server.asking import RESPONSES, chat
from tests.server.house import House

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}
CHAT_LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "look", "arguments": {"at": "the sky"}}</tool_call>'
HELLO: Any = [{"role": "user", "content": "hello"}]


post = partial(asking.post, path=RESPONSES)
ask = partial(asking.chat, path=RESPONSES)
refused = partial(asking.refused, path=RESPONSES)


def stream(house: House, **fields: Any) -> list[dict[str, Any]]:
    """The events, each named as its data says and numbered without a gap."""
    response = post(house, stream=True, **fields)
    frames = response.text.removesuffix("\n\n").split("\n\n")
    if frames[-1] == "data: [DONE]":
        frames.pop()
    found = []
    for frame in frames:
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        assert found[-1]["sequence_number"] == len(found) - 1
    return found


def prompt_as_chat(house: House, messages: list[Any], **fields: Any) -> str:
    house.say("so")
    chat(house, messages=messages, **fields)
    return house.prompt_text()


# --- replies ---


def test_a_reply_is_a_response_with_a_message(house: House) -> None:
    house.say("Hello.")
    reply = ask(house, instructions="Be brief.", metadata={"a": "b"}, store=True)
    assert reply["id"].startswith("resp_")
    assert (reply["object"], reply["status"], reply["model"]) == (
        "response",
        "completed",
        "tiny:1m",
    )
    (message,) = reply["output"]
    assert (message["type"], message["role"], message["status"]) == (
        "message",
        "assistant",
        "completed",
    )
    (part,) = message["content"]
    assert (part["type"], part["text"]) == ("output_text", "Hello.")
    assert (reply["instructions"], reply["metadata"]) == ("Be brief.", {"a": "b"})
    assert reply["store"] is False
    usage = reply["usage"]
    assert usage["input_tokens"] == len(house.requests[0].prompt.tokens)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_thought_text_and_calls_are_items_in_their_order(house: House) -> None:
    house.say(f"<think>hm</think>I look.\n{CALL}{CALL}")
    reply = ask(house, tools=[LOOK])
    thought, message, *calls = reply["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert thought["summary"] == []
    assert message["content"][0]["text"] == "I look."
    for call in calls:
        assert (call["type"], call["name"], call["status"]) == (
            "function_call",
            "look",
            "completed",
        )
        assert json.loads(call["arguments"]) == {"at": "the sky"}
    assert len({call["call_id"] for call in calls}) == 2
    assert len({item["id"] for item in reply["output"]}) == 4
    assert reply["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_who_asks_for_a_summary_gets_the_thought_as_one(house: House) -> None:
    house.say(*["<think>hm</think>So."] * 2)
    asked: Any = {"reasoning": {"effort": "low", "summary": "auto"}}
    thought, _ = ask(house, **asked)["output"]
    assert thought["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert "content" not in thought
    kinds = [event["type"] for event in stream(house, **asked)]
    told = [kind for kind in kinds if "summary" in kind]
    assert told[0] == "response.reasoning_summary_part.added"
    assert told[-2:] == [
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
    ]


def test_a_stream_builds_the_same_response_as_a_reply_whole(house: House) -> None:
    house.say(*[f"<think>hm</think>I look.\n{CALL}{CALL}"] * 2)
    whole, events = ask(house, tools=[LOOK]), stream(house, tools=[LOOK])
    last = events[-1]["response"]

    def without_ids(response: dict[str, Any]) -> Any:
        items = [{**item, "id": "", "call_id": ""} for item in response["output"]]
        return items, response["status"], response["usage"]["output_tokens"], response["tools"]

    assert without_ids(last) == without_ids(whole)
    assert [e["item"] for e in events if e["type"] == "response.output_item.done"] == last["output"]


def test_events_come_in_the_order_that_clients_expect(house: House) -> None:
    house.say(f"<think>hm</think>I look.\n{CALL}")
    events = stream(house, tools=[LOOK])
    kinds = [event["type"].removeprefix("response.") for event in events]
    short = [kind for n, kind in enumerate(kinds) if not n or kinds[n - 1] != kind]
    part = ["content_part.added", "{}.delta", "{}.done", "content_part.done"]
    assert short == [
        "created",
        "in_progress",
        "output_item.added",
        *[each.format("reasoning_text") for each in part],
        "output_item.done",
        "output_item.added",
        *[each.format("output_text") for each in part],
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert events[0]["response"]["output"] == []
    assert events[0]["response"]["usage"] is None
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1, 2]
    assert {event["item"]["status"] for event in added} == {"in_progress"}
    assert added[2]["item"]["name"] == "look"
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == added[event["output_index"]]["item"]["id"]


def test_deltas_add_up_to_what_is_done(house: House) -> None:
    house.say(f"<think>hm, hm</think>I look up.\n{CALL}")
    said: dict[str, str] = {}
    for event in stream(house, tools=[LOOK]):
        if event["type"].endswith(".delta"):
            said[event["item_id"]] = said.get(event["item_id"], "") + event["delta"]
        elif event["type"].endswith(("text.done", "arguments.done")):
            assert said[event["item_id"]] == event.get("text", event.get("arguments"))
    assert list(said.values()) == ["hm, hm", "I look up.", '{"at": "the sky"}']


def test_a_reply_that_is_cut_is_incomplete_and_says_why(house: House) -> None:
    house.say("one two three four", "one two three four")
    whole, *_, last = [ask(house, max_output_tokens=2), *stream(house, max_output_tokens=2)]
    assert last["type"] == "response.incomplete"
    for response in (whole, last["response"]):
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["output"][-1]["status"] == "incomplete"
        assert response["usage"]["output_tokens"] == 2


def test_what_was_read_before_is_counted(house: House) -> None:
    house.say("a", "b")
    usages = [ask(house, input="bird " * 100)["usage"] for _ in range(2)]
    tokens = len(house.requests[0].prompt.tokens)
    cached = [usage["input_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached == [0, tokens]
    assert [usage["input_tokens"] for usage in usages] == [tokens, tokens]


def test_a_failure_within_a_stream_is_told_and_ends_it(house: House) -> None:
    def fail() -> None:
        raise DeviceFailed("the device is on fire", fix="put it out")

    house.during_passes(fail)
    *_, error, failed = stream(house)
    assert error["type"] == "error"
    assert "on fire" in error["error"]["message"]
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert "on fire" in failed["response"]["error"]["message"]


# --- bodies ---


def test_items_mean_the_same_as_the_messages_of_a_chat(house: House) -> None:
    house.say("so")
    ask(
        house,
        instructions="Be brief.",
        input=[
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Where?"}],
            },
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "hm"}],
            },
            {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "1", "name": "look", "arguments": '{"at": "ß"}'},
            {"type": "function_call", "call_id": "2", "name": "look", "arguments": ""},
            {"type": "function_call_output", "call_id": "1", "output": "blue"},
            {
                "type": "function_call_output",
                "call_id": "2",
                "output": [{"type": "input_text", "text": "grey"}],
            },
            {"role": "developer", "content": "Be quick."},
            {"role": "user", "content": "Now?"},
        ],
        tools=[LOOK, {"type": "web_search"}],
    )
    asked = house.prompt_text()
    calls = [
        {"id": each, "type": "function", "function": {"name": "look", "arguments": arguments}}
        for each, arguments in (("1", '{"at": "ß"}'), ("2", ""))
    ]
    assert asked == prompt_as_chat(
        house,
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Where?"},
            {
                "role": "assistant",
                "content": "I look.",
                "reasoning_content": "hm",
                "tool_calls": calls,
            },
            {"role": "tool", "tool_call_id": "1", "content": "blue"},
            {"role": "tool", "tool_call_id": "2", "content": "grey"},
            {"role": "developer", "content": "Be quick."},
            {"role": "user", "content": "Now?"},
        ],
        tools=[CHAT_LOOK],
    )


def test_what_was_replied_comes_back_as_it_went(house: House) -> None:
    house.say(f"<think>hm</think>I look.\n{CALL}", "Blue.")
    asked: Any = [{"role": "user", "content": "bird " * 100}]
    output = ask(house, input=asked, tools=[LOOK])["output"]
    result = {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "blue"}
    reply = ask(house, input=[*asked, *output, result], tools=[LOOK])
    assert reply["output"][0]["content"][0]["text"] == "Blue."
    assert "<tool_call>look {'at': 'the sky'}</tool_call>" in house.prompt_text()
    assert reply["usage"]["input_tokens_details"]["cached_tokens"] > 0


def test_phases_of_a_reply_are_one_message(house: House) -> None:
    house.say("so")
    said = [
        {"type": "message", "role": "assistant", "phase": phase, "content": text}
        for phase, text in (("commentary", "I look."), ("final_answer", "Four."))
    ]
    ask(house, input=[*said, *HELLO])
    asked = house.prompt_text()
    merged = {"role": "assistant", "content": "I look.\n\nFour."}
    assert asked == prompt_as_chat(house, [merged, *HELLO])


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "whole conversation"),
        ({"conversation": "conv_1"}, "conversation", "whole conversation"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "whole conversation"),
        ({"background": True}, "background", "not supported"),
        ({"prompt": {"id": "p"}}, "prompt", "not supported"),
        ({"top_logprobs": 2}, "top_logprobs", "not supported"),
        ({"include": ["message.output_text.logprobs"]}, "include", "not supported"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format", "yaml"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "no schema"),
        ({"tool_choice": "sometimes"}, "tool_choice", "sometimes"),
        ({"tool_choice": "required"}, "tool_choice", "no tool"),
        ({"reasoning": {"effort": "some"}}, "reasoning.effort", "not known"),
        ({"input": []}, "input", "at least 1"),
        ({"input": None}, "input", "input"),
        ({"input": [{"type": "web_search_call"}]}, "input[0]", "not an item"),
        ({"input": [{"role": "clown", "content": "x"}]}, "input[0]", "not an item"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0]", "whole function_call"),
        ({"input": [{"type": "function_call_output"}]}, "input[0]", "not an item"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content", "neither text"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
            "no image",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0]", "name is missing"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    house: House, fields: dict[str, Any], param: str, word: str
) -> None:
    error = refused(house, **fields)
    assert error["param"] == param
    assert word in error["message"]


def test_tools_of_kinds_unknown_are_skipped_with_a_warning(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    house.say("so")
    reply = ask(house, tools=[{"type": "namespace", "tools": [LOOK]}, LOOK])
    assert [tool["name"] for tool in reply["tools"]] == ["look"]
    assert "1 of 2 tools skipped" in capsys.readouterr().err

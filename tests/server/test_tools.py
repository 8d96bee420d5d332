"""Tool calls as clients need them: whole and streamed, wanted or not, cut and malformed."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from flm.core.chat import DeltaKind, Message
from flm.core.event import FinishReason
from flm.llm import LLM
from flm.server.apis.entries import CHATS
from flm.server.prepare import Preparation
from flm.text.template import CHATML, ChatTemplate
from flm.text.tokenizer import Tokenizer
from tests.server import house as houses
from tests.server.asking import HELLO, chat, post
from tests.server.house import SETTINGS, TEMPLATE, TOKENIZER, House, in_process, open_house

TEXT = {"type": "string"}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {"at": TEXT}}}}
    for name in ("look", "find")
]
LOOK = '<tool_call>\n{"name": "look", "arguments": {"at": "the sky"}}\n</tool_call>'
FIND = '<tool_call>\n{"name": "find", "arguments": {"at": "it", "n": 2}}\n</tool_call>'


def streamed(house: House, **fields: Any) -> list[dict[str, Any]]:
    """The choices of all chunks."""
    response = post(house, stream=True, **fields)
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [choice for line in lines for choice in json.loads(line)["choices"]]


def test_a_reply_of_calls_alone_has_no_content(house: House) -> None:
    house.say(f"{LOOK}\n{FIND}")
    (choice,) = chat(house, tools=TOOLS)["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"] is None
    first, second = message["tool_calls"]
    assert first["type"] == "function"
    assert first["function"]["name"] == "look"
    assert json.loads(first["function"]["arguments"]) == {"at": "the sky"}
    assert json.loads(second["function"]["arguments"]) == {"at": "it", "n": 2}
    assert first["id"].startswith("call_")
    assert first["id"] != second["id"]


def test_thought_and_content_come_beside_calls(house: House) -> None:
    house.say(f"<think>hm</think>I look.\n{LOOK}")
    (choice,) = chat(house, tools=TOOLS)["choices"]
    assert choice["message"]["reasoning_content"] == "hm"
    assert choice["message"]["content"] == "I look."
    assert len(choice["message"]["tool_calls"]) == 1


def test_calls_stream_with_index_id_and_name_first(house: House) -> None:
    """ollama#15457, model_server#3927, opencode#24137."""
    house.say(f"I look.\n{LOOK}\n{FIND}")
    choices = streamed(house, tools=TOOLS)
    assert choices[-1]["delta"] == {}
    assert choices[-1]["finish_reason"] == "tool_calls"
    deltas = [choice["delta"] for choice in choices]
    assert "".join(delta.get("content", "") for delta in deltas) == "I look."
    calls: list[dict[str, Any]] = []
    for (piece,) in (delta["tool_calls"] for delta in deltas if "tool_calls" in delta):
        if piece["index"] == len(calls):
            assert piece["id"].startswith("call_")
            assert piece["type"] == "function"
            calls.append({"name": piece["function"]["name"], "arguments": ""})
        else:
            assert piece.keys() == {"index", "function"}
        assert piece["index"] == len(calls) - 1
        calls[-1]["arguments"] += piece["function"]["arguments"]
    assert [call["name"] for call in calls] == ["look", "find"]
    assert json.loads(calls[0]["arguments"]) == {"at": "the sky"}


def test_arguments_are_streamed_before_the_call_is_whole(house: House) -> None:
    house.say(LOOK.replace("the sky", "the sky and all the birds in it " * 4))
    stream = LLM(house.resident).stream("Where?", tools=TOOLS)
    assert sum(delta.kind is DeltaKind.ARGUMENTS for delta in stream) > 20


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}])
def test_where_no_calls_are_wanted_the_text_stays(house: House, fields: dict[str, Any]) -> None:
    house.say(LOOK)
    (choice,) = chat(house, **fields)["choices"]
    assert choice["message"]["content"] == LOOK
    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]


def test_a_call_that_is_cut_ends_with_length_as_it_stands(house: House) -> None:
    house.say(LOOK.replace("the sky", "the sky " * 40))
    (choice,) = chat(house, tools=TOOLS, max_tokens=60)["choices"]
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["arguments"].startswith('{"at": "the sky the sky')
    assert not call["function"]["arguments"].endswith("}")


def test_a_call_that_lacks_its_end_is_completed(house: House) -> None:
    house.say(LOOK.removesuffix('"}}\n</tool_call>'))
    (choice,) = chat(house, tools=TOOLS)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"at": "the sky"}


def test_a_stop_string_within_a_call_neither_completes_it_nor_asks_to_run_it(house: House) -> None:
    text = f"{LOOK}\n{FIND}".replace("it", "rm -r a STOP/b")
    house.say(text, text)
    (choice,) = chat(house, tools=TOOLS, stop="STOP")["choices"]
    assert choice["finish_reason"] == "stop"
    whole, cut = (call["function"]["arguments"] for call in choice["message"]["tool_calls"])
    assert json.loads(whole) == {"at": "the sky"}
    assert cut == '{"at": "rm -r a '
    assert streamed(house, tools=TOOLS, stop="STOP")[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("stop", ["</tool_call>", "\n<tool_call>", "Observation:"])
def test_calls_completed_before_a_stop_string_stay_calls(house: House, stop: str) -> None:
    house.say(f"{LOOK}\n{FIND}" if "call>" in stop else f"{LOOK}\nObservation: blue")
    (choice,) = chat(house, tools=TOOLS, stop=stop)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"at": "the sky"}


def test_what_is_no_call_is_content(house: House) -> None:
    text = "<tool_call>look at the sky</tool_call>"
    house.say(text)
    (choice,) = chat(house, tools=TOOLS)["choices"]
    assert choice["message"]["content"] == text
    assert choice["finish_reason"] == "stop"


def test_calls_come_back_as_they_went(house: House) -> None:
    house.say(LOOK, "Blue.")
    message = chat(house, tools=TOOLS)["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "blue"}
    reply = chat(house, messages=[*HELLO, message, result], tools=TOOLS)
    assert reply["choices"][0]["message"]["content"] == "Blue."
    assert "<tool_call>look {'at': 'the sky'}</tool_call>" in house.prompt_text()


def test_each_of_several_choices_calls_for_itself(house: House) -> None:
    house.say(LOOK, FIND)
    choices = chat(house, tools=TOOLS, n=2)["choices"]
    names = {choice["message"]["tool_calls"][0]["function"]["name"] for choice in choices}
    assert names == {"look", "find"}


def test_the_facade_gives_the_calls(house: House) -> None:
    house.say(f"<think>hm</think>So.{LOOK}")
    reply = LLM(house.resident).chat([Message("user", "Where?")], tools=TOOLS)
    assert (reply.text, reply.reasoning, reply.reason) == ("So.", "hm", FinishReason.STOP)
    (call,) = reply.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("look", {"at": "the sky"})


MARKED = """\
{%- for t in tools or [] %}{{ t | tojson }}{% endfor %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}
{%- for c in m.tool_calls or [] %}<|tool_call_start|>[{{ c.function.name }}()]<|tool_call_end|>
{%- endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
"""


@pytest.mark.parametrize("tools", [TOOLS, []])
def test_special_tokens_that_mark_calls_are_read_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: list[Any]
) -> None:
    marks = ("<|tool_call_start|>", "<|tool_call_end|>", "<think>", "</think>")
    content = json.loads((TOKENIZER / "tokenizer.json").read_text())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content["added_tokens"] += [
        {"id": 2048 + index, "content": mark, "special": True, **plain}
        for index, mark in enumerate(marks)
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    config = (TOKENIZER / "tokenizer_config.json").read_text()
    (tmp_path / "tokenizer_config.json").write_text(config)
    tokenizer = Tokenizer.load(tmp_path)
    template = ChatTemplate(MARKED, bos_token="", eos_token="<|im_end|>")
    monkeypatch.setattr(houses, "read_text", lambda _: (tokenizer, template))
    with open_house(tmp_path) as house:
        house.say('<think>hm</think>So.<|tool_call_start|>[look(at="it")]<|tool_call_end|>')
        (choice,) = chat(house, tools=tools)["choices"]
        message = choice["message"]
        assert message["reasoning_content"] == "hm"
        if tools:
            assert message["content"] == "So."
            assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"at": "it"}
        else:
            assert message["content"] == 'So.[look(at="it")]'


@pytest.mark.parametrize(("template", "times"), [(CHATML, 1), (TEMPLATE, 0)])
def test_tools_that_a_model_is_not_told_of_are_said_to_be_left_out_once(
    template: str, times: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"model": "tiny:1m", "messages": HELLO, "tools": TOOLS}
    with open_house(tmp_path, template=template) as house:
        preparation = Preparation(SETTINGS, house.residence)
        for _ in range(2):
            preparation.chat(CHATS, fields, None)
    assert capsys.readouterr().err.count("tiny:1m is told of no tools") == times


def test_what_is_said_once_one_route_says_for_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {"model": "tiny:1m", "messages": HELLO, "tools": TOOLS}

    async def ask(house: House) -> None:
        async with in_process(house) as client:
            for path in ("/tokenize", "/v1/prefix-cache/explain"):
                assert (await client.post(path, json=body)).status_code == 200

    with open_house(tmp_path, template=CHATML) as house:
        asyncio.run(ask(house))
    assert capsys.readouterr().err.count("is told of no tools") == 1

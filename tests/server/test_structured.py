"""Formats and calls that are asked for, from a model that picks its tokens blindly."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from flm.core.chat import Conversation, Message
from flm.core.event import FinishReason
from flm.core.request import SamplingParams
from flm.engine.conversation import Conversations
from flm.engine.terms import Terms
from flm.errors import UnsupportedFeature
from flm.llm import LLM
from flm.prefix.boundaries import BoundaryFinder
from flm.text.constraint import Format
from flm.text.grammar import Grammars
from flm.text.template import CHATML, ChatTemplate
from flm.text.tokenizer import Tokenizer
from tests.pure.any_reply import allowed
from tests.pure.test_text_dialects_templates import SOURCES
from tests.server.asking import HELLO, chat, post, refused
from tests.server.house import TOKENIZER, House, in_process, open_house
from tests.server.test_messages import ask
from tests.server.test_tools import streamed

SHORT = {"type": "string", "maxLength": 10}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": SHORT, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
AT = {"type": "object", "properties": {"at": {"enum": ["the sky", "it"]}}, "required": ["at"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": AT}} for name in ("look", "find")
]
FIND = {"type": "function", "function": {"name": "find"}}
TELLING = [name for name, (_, dialect) in SOURCES.items() if dialect.calls]


def sent(house: House, path: str, body: dict[str, Any]) -> httpx.Response:
    async def send() -> httpx.Response:
        async with in_process(house) as client:
            return await client.post(path, json={"model": "tiny:1m", **body})

    return asyncio.run(send())


def arguments(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    assert choice["finish_reason"] == "tool_calls"
    functions = [call["function"] for call in choice["message"]["tool_calls"]]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


def test_content_is_valid_by_the_schema_in_every_choice(house: House) -> None:
    for seed in range(3):
        reply = chat(house, response_format=FORMAT, n=3, temperature=1.5, seed=seed)
        for choice in reply["choices"]:
            assert choice["finish_reason"] == "stop"
            jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)


def test_a_json_object_is_one_or_is_cut(house: House) -> None:
    for seed in range(12):
        asked = {"type": "json_object"}
        reply = chat(house, response_format=asked, temperature=1, seed=seed, max_tokens=50)
        (choice,) = reply["choices"]
        assert choice["message"]["content"].startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"]), dict)
        else:
            assert choice["finish_reason"] == "length"
            assert reply["usage"]["completion_tokens"] == 50


@pytest.mark.parametrize("name", TELLING)
def test_required_and_named_calls_come_in_every_dialect(tmp_path: Path, name: str) -> None:
    with open_house(tmp_path, template=SOURCES[name][0]) as house:
        for seed in range(2):
            asked: dict[str, Any] = {"tools": TOOLS, "temperature": 1, "seed": seed}
            asked["think"] = False
            called = arguments(chat(house, tool_choice="required", **asked)["choices"][0])
            for tool, given in called:
                assert tool in ("look", "find")
                jsonschema.validate(given, AT)
            ((tool, given),) = arguments(chat(house, tool_choice=FIND, **asked)["choices"][0])
            assert tool == "find"
            jsonschema.validate(given, AT)


def test_enforced_calls_stream_with_the_name_whole_and_first(house: House) -> None:
    deltas = [
        delta
        for choice in streamed(house, tools=TOOLS, tool_choice="required", temperature=1, seed=3)
        for delta in choice["delta"].get("tool_calls", [])
    ]
    assert deltas[0]["index"] == 0
    first = {delta["index"]: delta for delta in reversed(deltas)}
    assert sorted(first) == list(range(len(first)))
    assert all(delta["function"]["name"] in ("look", "find") for delta in first.values())


def test_without_parallel_calls_there_is_one(house: House) -> None:
    for seed in range(8):
        asked = {"tools": TOOLS, "tool_choice": "required", "temperature": 1, "seed": seed}
        assert len(arguments(chat(house, parallel_tool_calls=False, **asked)["choices"][0])) == 1


def test_a_model_that_chooses_to_call_twice_is_stopped_at_the_second(house: House) -> None:
    one = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>\n'
    for asked in ({}, {"stream": True}):
        house.say(one * 40)
        if asked:
            (*_, last) = choices = streamed(house, tools=TOOLS, parallel_tool_calls=False)
            indices = {
                delta["index"]
                for choice in choices
                for delta in choice["delta"].get("tool_calls", [])
            }
            assert indices == {0}
            assert last["finish_reason"] == "tool_calls"
        else:
            reply = chat(house, tools=TOOLS, parallel_tool_calls=False)
            assert arguments(reply["choices"][0]) == [("look", {"at": "it"})]
    house.say(one * 2)
    assert len(LLM(house.resident).chat("Look.", tools=TOOLS, calls_max=1).tool_calls) == 1


def test_a_thought_comes_first_and_is_free(house: House) -> None:
    for tag in ("", "<think>"):  # the prompt has opened it, and some models do as well
        house.begin(f'{tag}It is {{"name": 5}}, <tool_call>.\n</think>\n\n')
        asked = {"reasoning_effort": "low", "temperature": 1, "seed": 2, "response_format": FORMAT}
        (choice,) = chat(house, **asked)["choices"]
        message = choice["message"]
        assert message["reasoning_content"] == 'It is {"name": 5}, <tool_call>.\n'
        jsonschema.validate(json.loads(message["content"]), PERSON)


def test_a_thought_that_is_never_closed_is_cut_and_says_so(house: House) -> None:
    (choice,) = chat(
        house, reasoning_effort="low", response_format=FORMAT, temperature=1, seed=2, max_tokens=40
    )["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == ""


@pytest.mark.parametrize(("asked", "may"), [(None, True), (False, False), (True, True)])
def test_a_model_with_a_token_for_it_may_think_unless_told_not_to(
    house: House, tmp_path: Path, asked: bool | None, may: bool
) -> None:
    description = json.loads((TOKENIZER / "tokenizer.json").read_text())
    tag = {**description["added_tokens"][0], "id": 2048, "content": "<think>", "special": False}
    description["added_tokens"].append(tag)
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    knows = Tokenizer.load(tmp_path)
    assert knows.encode("<think>") == [2048]
    resident = replace(house.resident, tokenizer=knows, grammars=Grammars(knows))
    hello = Conversation((Message("user", "hello"),), thinking=asked)
    if asked:  # it would open the thought itself
        resident = replace(resident, template=ChatTemplate(CHATML, bos_token="", eos_token=""))
        boundaries = BoundaryFinder(resident.template, house.tokenizer)
        resident = replace(resident, boundaries=boundaries)
    terms = Terms(SamplingParams(), format=Format(PERSON, "format"))
    (answer,) = Conversations(resident).chat(hello, terms, request_id="a")
    assert answer.request.grammar
    assert (2048 in allowed(answer.request.grammar, [])) == may


def test_content_has_the_format_where_no_tool_is_called(house: House) -> None:
    asked: dict[str, Any] = {"tools": TOOLS, "response_format": FORMAT, "temperature": 1, "seed": 2}
    for begun in ("{", "<tool_call>"):
        house.begin(begun)
        (choice,) = chat(house, parallel_tool_calls=False, **asked)["choices"]
        if begun == "{":
            jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
        else:
            jsonschema.validate(arguments(choice)[0][1], AT)
    (choice,) = chat(house, tool_choice="none", **asked)["choices"]
    jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)


def test_a_stop_string_ends_what_is_held_too(house: House) -> None:
    (choice,) = chat(house, response_format=FORMAT, stop='"age"', temperature=1, seed=2)["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].startswith("{")
    assert "age" not in choice["message"]["content"]


def test_log_probabilities_are_the_models_own(house: House) -> None:
    (choice,) = chat(house, response_format=FORMAT, logprobs=True, top_logprobs=2)["choices"]
    first = choice["logprobs"]["content"][0]
    assert first["token"] == "{"
    likeliest = first["top_logprobs"][0]
    assert likeliest["logprob"] > first["logprob"], "it would have begun otherwise"


def test_the_prompt_is_the_same_and_kept_the_same(house: House) -> None:
    free = chat(house, tools=TOOLS, max_tokens=3)
    for asked in ({"tool_choice": "required"}, {"response_format": FORMAT}):
        held = chat(house, tools=TOOLS, temperature=1, seed=2, **asked)
        assert held["usage"]["prompt_tokens"] == free["usage"]["prompt_tokens"]
        assert held["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert len({request.prompt.tokens for request in house.requests}) == 1


def test_free_and_held_requests_run_side_by_side(house: House) -> None:
    llm = LLM(house.resident)
    alone = llm.chat("Hello.", temperature=1, seed=5, max_tokens=40).text
    held = llm.stream("Who?", schema=PERSON, temperature=1, seed=6)
    free = llm.stream("Hello.", temperature=1, seed=5, max_tokens=40)
    jsonschema.validate(json.loads(held.reply.text), PERSON)
    assert free.reply.text == alone


def test_a_grammar_that_fails_fails_its_request_alone(house: House) -> None:
    llm = LLM(house.resident)
    free = llm.stream("Hello.", temperature=1, seed=5, max_tokens=40)
    # Past its own end a matcher takes nothing more: as if the model had broken out.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flm.text.grammar.ReplyMatcher.allowed", lambda self: self.take([0, 0, 0]))
        response = post(house, response_format=FORMAT)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "grammar_failed"
    assert free.reply.reason in (FinishReason.LENGTH, FinishReason.STOP)
    jsonschema.validate(json.loads(llm.chat("Who?", schema=PERSON).text), PERSON)


def test_anthropics_words_for_it(house: House) -> None:
    tools = [{"name": name, "input_schema": AT} for name in ("look", "find")]
    for choice, names in (
        ({"type": "any"}, {"look", "find"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"look", "find"}),
        ({"type": "tool", "name": "find"}, {"find"}),
    ):
        reply = ask(house, tools=tools, tool_choice=choice, temperature=1, seed=2, max_tokens=300)
        assert reply["stop_reason"] == "tool_use"
        for block in reply["content"]:
            assert block["type"] == "tool_use"
            assert block["name"] in names
            jsonschema.validate(block["input"], AT)
        assert len(reply["content"]) == 1 or choice == {"type": "any"}
    format = {"type": "json_schema", "schema": PERSON}
    for asked in ({"output_config": {"format": format}}, {"output_format": format}):
        (block,) = ask(house, temperature=1, seed=2, max_tokens=300, **asked)["content"]
        jsonschema.validate(json.loads(block["text"]), PERSON)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tool_choice": "required"}, "tool_choice", "call of no tool"),
        ({"tool_choice": {"type": "function"}, "tools": TOOLS}, "tool_choice", "names no tool"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "go"}}, "tools": TOOLS},
            "tool_choice",
            "'go'",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format", "no schema"),
        (
            {"response_format": {"type": "json_object"}, "ignore_eos": True},
            "ignore_eos",
            "does not end",
        ),
        (
            {
                "response_format": {"type": "json_object"},
                "messages": [*HELLO, {"role": "assistant", "content": "{"}],
            },
            "messages",
            "goes on",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    house: House, fields: dict[str, Any], param: str, words: str
) -> None:
    error = refused(house, **fields)
    assert error["param"] == param
    assert words in error["message"]
    assert not house.requests


def test_a_model_that_is_told_of_no_tools_cannot_be_made_to_call(tmp_path: Path) -> None:
    with open_house(tmp_path, template=SOURCES["chatml"][0]) as house:
        error = refused(house, tools=TOOLS, tool_choice="required")
        assert (error["param"], error["code"]) == ("tool_choice", "unsupported_parameter")
        with pytest.raises(UnsupportedFeature):
            LLM(house.resident).chat("Look.", tools=TOOLS, must_call=["look"])
        reply = chat(house, tools=TOOLS, response_format=FORMAT, temperature=1, seed=2)
        jsonschema.validate(json.loads(reply["choices"][0]["message"]["content"]), PERSON)


def test_calls_of_some_tools_may_be_asked_for(house: House) -> None:
    for some in (
        {"mode": "required", "tools": [FIND]},
        {"mode": "required", "tools": [{"type": "function", "name": "find"}]},
    ):
        choice = {"type": "allowed_tools", "allowed_tools": some}
        reply = chat(house, tools=TOOLS, tool_choice=choice, temperature=1, seed=2)
        assert {name for name, _ in arguments(reply["choices"][0])} == {"find"}


def test_formats_in_the_words_of_other_apis(house: House) -> None:
    seeded = {"options": {"temperature": 1, "seed": 2}}
    messages = {"messages": HELLO, "stream": False, **seeded}
    typed = {
        "input": "hello",
        "temperature": 1,
        "seed": 2,
        "text": {"format": {**FORMAT["json_schema"]}},
    }
    typed["text"]["format"]["type"] = "json_schema"  # type: ignore[index]
    for path, body, content in (
        ("/api/chat", {**messages, "format": PERSON}, lambda said: said["message"]["content"]),
        ("/api/chat", {**messages, "format": "json"}, lambda said: said["message"]["content"]),
        (
            "/api/generate",
            {"prompt": "hello", "format": PERSON, "raw": True, "stream": False, **seeded},
            lambda said: said["response"],
        ),
        ("/v1/responses", typed, lambda said: said["output"][0]["content"][0]["text"]),
        (
            "/v1/completions",
            {"prompt": "hello", "response_format": FORMAT, "max_tokens": 200},
            lambda said: said["choices"][0]["text"],
        ),
    ):
        response = sent(house, path, body)
        assert response.status_code == 200, response.text
        said = content(response.json())
        if body.get("format") != "json":
            jsonschema.validate(json.loads(said), PERSON)
        assert said.startswith("{")


def test_responses_call_what_they_must(house: House) -> None:
    tools = [{"type": "function", "name": name, "parameters": AT} for name in ("look", "find")]
    for choice in ("required", {"type": "function", "name": "find"}):
        body = {
            "input": "hello",
            "tools": tools,
            "tool_choice": choice,
            "temperature": 1,
            "seed": 2,
        }
        output = sent(house, "/v1/responses", body).json()["output"]
        assert output
        for item in output:
            assert item["type"] == "function_call"
            assert item["name"] == "find" or choice == "required"
            jsonschema.validate(json.loads(item["arguments"]), AT)

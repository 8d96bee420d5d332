"""Calls, thoughts and content are told apart in every dialect, wherever tokens cut the text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flm.core.chat import DeltaKind
from flm.text.dialects.dialect import Dialect
from flm.text.dialects.gemma import GEMMA4
from flm.text.dialects.harmony import HARMONY
from flm.text.dialects.hermes import HERMES, QWEN
from flm.text.dialects.lfm import LFM
from flm.text.dialects.llama import LLAMA
from flm.text.dialects.values import DEPTH_MAX
from tests.pure.written import DIALECTS, NOW, PARIS, TOOLS, WRITTEN, Said, function, read

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'


@pytest.mark.parametrize(("dialect", "text", "wanted"), WRITTEN)
def test_what_models_write_is_read(dialect: Dialect, text: str, wanted: Said) -> None:
    assert read(dialect, text) == wanted
    assert read(dialect, *text) == wanted
    for at in range(len(text)):
        assert read(dialect, text[:at], text[at:]) == wanted


@pytest.mark.parametrize(("dialect", "text", "wanted"), WRITTEN)
def test_a_reply_that_is_cut_says_no_more_than_the_whole(
    dialect: Dialect, text: str, wanted: Said
) -> None:
    for at in range(len(text)):
        part = read(dialect, text[:at], cut=True)
        whole = (*wanted.calls, *(("", ""),) * len(part.calls))
        for (name, arguments), (whole_name, whole_arguments) in zip(
            part.calls, whole, strict=False
        ):
            assert name == whole_name
            assert whole_arguments.startswith(arguments)


MARKS = sorted({mark for each in DIALECTS for mark in (*each.marks, *each.call_marks)})
PARTS = st.sampled_from(
    [
        *MARKS,
        *("call:", "weather", "now", "<function=", "<parameter=city>", "</parameter>", "functools"),
        *('{"name": "weather", "arguments": ', '{"city": "Paris"}', '"name"', '"', "'", "```"),
        *("{", "}", "[", "]", "(", ")", ",", ":", "=", "\\", "1", "-", "null", " ", "\n", "a", "é"),
        *("to=functions.now", "assistant", "final", "print(", "</function>", "tool_code", "\\u00"),
    ]
)


@pytest.mark.parametrize("name", BY_NAME)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(text=st.lists(PARTS, max_size=14).map("".join), thinking=st.booleans(), data=st.data())
def test_any_text_cut_anywhere_says_the_same(
    name: str, text: str, thinking: bool, data: st.DataObject
) -> None:
    dialect = BY_NAME[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(dialect, text, thinking=thinking)
    assert read(dialect, *pieces, thinking=thinking) == whole
    assert read(dialect, *text, thinking=thinking) == whole
    for _, arguments in whole.calls:
        json.loads(arguments)
    assert not read(dialect, *pieces, thinking=thinking, tools=()).calls


def test_arguments_stream_as_they_come() -> None:
    for dialect, head, tail in (
        (HERMES, '<tool_call>{"name": "write", "arguments": {"content": "', '"}}</tool_call>'),
        (QWEN, "<tool_call>\n<function=write>\n<parameter=content>\n", "\n</parameter>"),
        (LLAMA, '{"name": "write", "parameters": {"content": "', '"}}'),
        (LFM, "<|tool_call_start|>[write(content='", "')]<|tool_call_end|>"),
        (GEMMA4, '<|tool_call>call:write{content:<|"|>', '<|"|>}<tool_call|>'),
        (HARMONY, ' to=functions.write<|channel|>commentary json<|message|>{"content": "', '"}'),
    ):
        reader = dialect.open(TOOLS, False)
        first, *more = reader.add(head)
        assert (first.kind, first.text) == (DeltaKind.CALL, "write"), dialect.name
        written = "".join(delta.text for delta in more)
        for word in ("one ", "two ", "three"):
            (delta,) = reader.add(word)
            assert delta.kind is DeltaKind.ARGUMENTS, dialect.name
            assert delta.text.endswith(word), dialect.name
            written += delta.text
        rest = "".join(delta.text for delta in [*reader.add(tail), *reader.finish()])
        assert json.loads(written + rest) == {"content": "one two three"}


@pytest.mark.parametrize(
    ("dialect", "text", "wanted"),
    [
        # repaired
        (HERMES, CALL.replace("}}", "}"), Said(calls=(PARIS,))),
        (HERMES, CALL.replace("}}</tool_call>", ""), Said(calls=(PARIS,))),
        (HERMES, CALL.replace('"}}</tool_call>', ""), Said(calls=(PARIS,))),
        (HERMES, CALL.replace("}}", "}}}"), Said(calls=(PARIS,))),
        (HERMES, CALL.replace('"Paris"', '"Paris",'), Said(calls=(PARIS,))),
        (HERMES, CALL.replace('"', "'"), Said(calls=(PARIS,))),
        (HERMES, CALL.replace('"city"', "city"), Said(calls=(PARIS,))),
        (
            HERMES,
            CALL.replace("Paris", 'P"ar"is'),
            Said(calls=(("weather", r'{"city": "P\"ar\"is"}'),)),
        ),
        (HERMES, CALL.replace("Paris", "a\nb"), Said(calls=(("weather", r'{"city": "a\nb"}'),))),
        (
            HERMES,
            CALL.replace("Paris", r"\d\x41"),
            Said(calls=(("weather", '{"city": "\\\\d\\u0041"}'),)),
        ),
        (HERMES, CALL.replace("arguments", "parameters"), Said(calls=(PARIS,))),
        (HERMES, f"<tool_call>{CALL}", Said("<tool_call>", (PARIS,))),
        (HERMES, '<tool_call>[{"name": "now"}]</tool_call>', Said(calls=(NOW,))),
        (HERMES, '<tool_call>{"name": "nope", "arguments": {}}', Said(calls=(("nope", "{}"),))),
        (QWEN, CALL, Said(calls=(PARIS,))),
        (QWEN, "<tool_call>\n<function=weather>\n<parameter=city>\nParis", Said(calls=(PARIS,))),
        (
            QWEN,
            "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</function>\n</tool_call>",
            Said(calls=(PARIS,)),
        ),
        (LFM, '<|tool_call_start|>[weather(city="Paris"', Said(calls=(PARIS,))),
        (GEMMA4, "<|tool_call>call:weather{city:Paris", Said(calls=(PARIS,))),
        # told as content
        (HERMES, '<tool_call>{"name": 5}</tool_call>', Said('<tool_call>{"name": 5}</tool_call>')),
        (HERMES, "<tool_call>\nhm</tool_call>", Said("<tool_call>\nhm</tool_call>")),
        (HERMES, '<tool_call>{"na', Said('<tool_call>{"na')),
        (QWEN, "<function=nope>", Said("<function=nope>")),
        (LLAMA, "{", Said("{")),
        (
            LFM,
            "<|tool_call_start|>[1]<|tool_call_end|>",
            Said("<|tool_call_start|>[1]<|tool_call_end|>"),
        ),
        (GEMMA4, "<|tool_call>weather", Said("<|tool_call>weather")),
        (HARMONY, "<|channel|>final Hello", Said("Hello")),
    ],
)
def test_a_malformed_call_is_repaired_or_told(dialect: Dialect, text: str, wanted: Said) -> None:
    assert read(dialect, text) == read(dialect, *text) == wanted


def test_depth_is_bounded() -> None:
    deep = "[" * 10_000
    found = read(HERMES, f'<tool_call>{{"name": "now", "arguments": {{"a": {deep}')
    assert json.loads(found.calls[0][1])
    assert found.calls[0][1].count("[") <= DEPTH_MAX


@pytest.mark.parametrize("name", BY_NAME)
def test_without_tools_nothing_is_a_call(name: str) -> None:
    text = f"Say {CALL} or [f(a=1)]."
    assert read(BY_NAME[name], text, tools=()) == Said(text)


def test_calls_that_an_open_thought_ends_with_are_calls() -> None:
    thought = "I use <tool_call> now.\n"
    assert read(HERMES, f"{thought}{CALL}\n", thinking=True) == Said("", (PARIS,), thought)
    assert read(HERMES, *f"{thought}{CALL}", thinking=True) == Said("", (PARIS,), thought)


def test_calls_in_a_thought_that_goes_on_or_is_closed_are_thought() -> None:
    for thought in (f"Perhaps {CALL}", f"Perhaps {CALL}, or not.", f"{CALL}{CALL} hm"):
        text = f"{thought}</think>So: {CALL}"
        assert read(HERMES, *text, thinking=True) == Said("So:", (PARIS,), thought)
        assert read(HERMES, text, thinking=True) == Said("So:", (PARIS,), thought)
    assert read(HERMES, f"{CALL} hm", thinking=True) == Said(thought=f"{CALL} hm")


def test_thoughts_stream_but_for_what_may_be_a_call() -> None:
    reader = HERMES.open(TOOLS, True)
    assert [delta.text for delta in reader.add("Let me <tool")] == ["Let me "]
    assert [delta.text for delta in reader.add("box")] == ["<toolbox"]


@pytest.mark.parametrize(
    ("schema", "value", "wanted"),
    [
        ({"type": "string"}, "5", '"5"'),
        ({"type": "string"}, "null", '"null"'),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "nullable", '"nullable"'),
        ({"type": "integer"}, "5", "5"),
        ({"type": "integer"}, "five", '"five"'),
        ({"type": "number"}, "5", "5"),
        ({"type": "boolean"}, "False", "false"),
        ({"type": "object"}, "{'a': True}", '{"a": true}'),
        ({"type": "array"}, "[1, 2]", "[1, 2]"),
        ({"enum": ["1", "2"]}, "1", '"1"'),
        ({"$ref": "#/$defs/None"}, "7", "7"),
        ({}, "[a](b)", '"[a](b)"'),
        ({}, '{"a": 1}', '{"a": 1}'),
        ({}, "word", '"word"'),
        ({"type": 7}, "", '""'),
    ],
)
def test_values_without_quotes_are_what_the_schema_says(
    schema: dict[str, object], value: str, wanted: str
) -> None:
    text = f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>"
    found = read(QWEN, text, tools=(function("f", a=schema),))
    assert found.calls == (("f", f'{{"a": {wanted}}}'),)

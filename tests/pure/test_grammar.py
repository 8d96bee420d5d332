"""What a reply is held to: whatever a model picks, what it has said is what was asked for."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from flm.core.grammar import Grammar
from flm.core.prompt import Prompt
from flm.core.request import Request, SamplingParams
from flm.engine.logits import processors_for
from flm.errors import BadRequest, GrammarFailed, UnsupportedFeature
from flm.text.constraint import Format, Thought, reply_grammar
from flm.text.dialects.dialect import Dialect
from flm.text.dialects.gemma import GEMMA4
from flm.text.dialects.harmony import HARMONY
from flm.text.dialects.hermes import HERMES, QWEN
from flm.text.dialects.lfm import LFM
from flm.text.dialects.tagged import PLAIN
from flm.text.gguf_tokenizer import write_tokenizer
from flm.text.grammar import SOURCE_CHARS_MAX, Grammars
from flm.text.tokenizer import Tokenizer
from tests.pure.any_reply import allowed, any_reply, grammars, tokenizer
from tests.pure.vocabularies import sentencepiece
from tests.pure.written import DIALECTS, read

CALLING = [dialect for dialect in DIALECTS if dialect.calls]
SHORT = {"type": "string", "maxLength": 12}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": SHORT, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def held(
    schema: Any = None,
    *,
    dialect: Dialect = HERMES,
    thought: Thought = Thought.NONE,
    tools: tuple[dict[str, Any], ...] = (),
    **more: Any,
) -> Grammar:
    format = None if schema is None else Format(schema, "format")
    return reply_grammar(grammars(), dialect, thought, format=format, tools=tools, **more)


# Few values each, so that whatever is picked soon ends.
SCALARS: some.SearchStrategy[dict[str, Any]] = some.sampled_from(
    [
        SHORT,
        {"type": "integer", "minimum": -3, "maximum": 40},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["red", "dark blue", 'a "b"', "}", "</tool_call>", 5, None, True]},
        {"const": "fixed\nand {broken}"},
        {"type": ["boolean", "null"]},
        {"type": "string", "pattern": "^[a-f]{2,4}$"},
        {"anyOf": [{"type": "null"}, {"enum": ["x", "y"]}]},
    ]
)
KEYS = some.lists(some.sampled_from(["a", "b_1", "long-key", "wie viel?", "c"]), unique=True)


@some.composite
def objects(draw: some.DrawFn, inner: some.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    keys = draw(KEYS)
    return {
        "type": "object",
        "properties": {key: draw(inner) for key in keys},
        "required": [key for key in keys if draw(some.booleans())],
        "additionalProperties": False,
    }


def lists(inner: some.SearchStrategy[dict[str, Any]]) -> some.SearchStrategy[dict[str, Any]]:
    return inner.map(lambda items: {"type": "array", "items": items, "maxItems": 3})


SCHEMAS = some.recursive(SCALARS, lambda inner: objects(inner) | lists(inner), max_leaves=6)
OBJECTS = objects(SCHEMAS)


@settings(max_examples=40, deadline=None)
@given(schema=SCHEMAS, seed=some.integers(0, 2**32 - 1), brief=some.booleans())
def test_whatever_is_picked_is_valid_by_the_schema(schema: Any, seed: int, brief: bool) -> None:
    reply = any_reply(held(schema), seed, brief=brief)
    if reply.ended:
        jsonschema.validate(json.loads(reply.text), schema)


@pytest.mark.parametrize("dialect", CALLING, ids=lambda dialect: dialect.name)
@settings(max_examples=12, deadline=None)
@given(first=OBJECTS, second=OBJECTS, seed=some.integers(0, 2**32 - 1))
def test_whatever_is_picked_are_calls_that_read_back(
    dialect: Dialect, first: Any, second: Any, seed: int
) -> None:
    tools = (tool("look", first), tool("find-it", second))
    try:
        grammar = held(dialect=dialect, tools=tools, calls_max=2)
    except UnsupportedFeature:
        assert dialect.name == "gemma3", "it has Python alone, and so no key that is none there"
        return
    reply = any_reply(grammar, seed, brief=bool(seed % 2))
    if not reply.ended:
        return
    found = read(dialect, reply.text, tools=tools)
    assert not found.content
    assert 1 <= len(found.calls) <= 2
    for name, arguments in found.calls:
        jsonschema.validate(json.loads(arguments), {"look": first, "find-it": second}[name])


@pytest.mark.parametrize("dialect", CALLING, ids=lambda dialect: dialect.name)
def test_text_without_limits_reads_back_as_text(dialect: Dialect) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    tools = (tool("write", schema),)
    grammar = held(dialect=dialect, tools=tools, calls_max=1)
    ended = 0
    for seed in range(40):
        reply = any_reply(grammar, seed, most=120)
        (call,) = read(dialect, reply.text, tools=tools, cut=not reply.ended).calls
        ended += reply.ended
        if reply.ended:
            jsonschema.validate(json.loads(call[1]), schema)
    assert ended or dialect in (QWEN, *(each for each in CALLING if "gemma" in each.name))


@pytest.mark.parametrize(
    ("dialect", "written"),
    [
        (HERMES, '<tool_call>\n{"name": "say", "arguments": {"to": "a b", "n": 2}}\n</tool_call>'),
        (
            QWEN,
            "<tool_call>\n<function=say>\n<parameter=to>\na b\n</parameter>\n<parameter=n>\n2\n"
            "</parameter>\n</function>\n</tool_call>",
        ),
        (LFM, '<|tool_call_start|>[say(to="a b", n=2)]<|tool_call_end|>'),
        (GEMMA4, '<|tool_call>call:say{to:<|"|>a b<|"|>,n:2}<tool_call|>'),
        (
            HARMONY,
            "<|channel|>commentary to=functions.say <|constrain|>json<|message|>"
            '{"to": "a b", "n": 2}',
        ),
    ],
)
def test_a_call_may_be_written_as_the_template_shows_it(dialect: Dialect, written: str) -> None:
    integer = {"type": "integer"}
    schema = {"type": "object", "properties": {"to": {"type": "string"}, "n": integer}}
    grammar = held(dialect=dialect, tools=(tool("say", schema),))
    assert tokenizer().eos_ids <= allowed(grammar, tokenizer().encode(written))


def test_a_thought_is_any_text_and_comes_first() -> None:
    thought = 'I think {"name": 5} <tool_call> is wrong.\n'
    said = '</think>\n\n{"name": "Ada", "age": 36}'
    for state, begin in ((Thought.OPEN, ""), (Thought.MAY, "<think>\n"), (Thought.MAY, None)):
        grammar = held(PERSON, thought=state)
        text = said.removeprefix("</think>\n\n") if begin is None else begin + thought + said
        tokens = tokenizer().encode(text)
        ends = [
            length
            for length in range(len(tokens) + 1)
            if tokenizer().eos_ids & allowed(grammar, tokens[:length])
        ]
        assert ends == [len(tokens)], "it may end only where it is complete"


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_of_sentencepiece_are_held_as_well(tmp_path: Path, prefix: bool) -> None:
    """It would put a space before what a model has to write, where none may be."""
    metadata = sentencepiece() | {"tokenizer.ggml.add_space_prefix": prefix}
    write_tokenizer(metadata, tmp_path)
    pieces = Tokenizer.load(tmp_path)
    assert pieces.drops_first_space == prefix
    schema = {"type": "object", "properties": {"the dog": {"enum": ["over there", "the thing"]}}}
    grammar = reply_grammar(
        Grammars(pieces),
        HERMES,
        Thought.NONE,
        format=None,
        tools=(tool("the", {**schema, "required": ["the dog"]}),),
        calls_max=1,
    )
    for seed in range(3):
        reply = any_reply(grammar, seed, by=pieces)
        assert reply.ended
        ((name, said),) = read(HERMES, pieces.decode(reply.tokens)).calls
        assert name == "the"
        assert json.loads(said)["the dog"] in ("over there", "the thing")


def test_what_has_to_come_comes_in_the_tokens_that_it_is_encoded_in() -> None:
    text = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    grammar = held(tools=(tool("look", None),), calls_max=1)
    tokens = tokenizer().encode(text)
    for length in range(tokens.index(tokenizer().encode(" {}")[0])):
        assert allowed(grammar, tokens[:length]) == {tokens[length]}


def test_without_a_thought_none_is_begun() -> None:
    with pytest.raises(GrammarFailed):
        allowed(held(PERSON), tokenizer().encode("<think>"))


def test_harmony_thinks_and_answers_in_its_channels() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        '<|channel|>final<|message|>{"name": "Ada", "age": 36}'
    )
    grammar = held(PERSON, dialect=HARMONY, thought=Thought.MAY)
    assert tokenizer().eos_ids <= allowed(grammar, tokenizer().encode(text))
    said = read(HARMONY, text)
    assert (said.thought, json.loads(said.content)) == ("Hm.", {"name": "Ada", "age": 36})


def test_content_in_a_format_or_a_call_whichever_the_model_picks() -> None:
    grammar = held(PERSON, tools=(tool("look", PERSON),), calls_max=1)
    replies = [any_reply(grammar, seed) for seed in range(40)]
    found = [read(HERMES, reply.text) for reply in replies if reply.ended]
    assert {bool(each.calls) for each in found} == {True, False}
    for each in found:
        said = each.calls[0][1] if each.calls else each.content
        jsonschema.validate(json.loads(said), PERSON)


def test_what_a_client_writes_stays_text_in_the_grammar() -> None:
    nasty = '"\n start: "x" | %json {} <|im_end|> \\ \u2028 /'
    schema = {"type": "object", "properties": {nasty: {"const": nasty}}, "required": [nasty]}
    for dialect in (HERMES, QWEN, GEMMA4):
        reply = any_reply(held(dialect=dialect, tools=(tool("f", schema),), calls_max=1), 1)
        (call,) = read(dialect, reply.text).calls
        assert json.loads(call[1]) == {nasty: nasty}


def test_what_a_client_says_to_the_library_is_not_heard() -> None:
    schema = {"x-guidance": {"lenient": True}, "type": "object", "not": {}}
    with pytest.raises(UnsupportedFeature, match="not"):
        held(schema)


def test_going_on_from_the_tokens_so_far_is_going_on() -> None:
    grammar = held(PERSON)
    tokens = list(any_reply(grammar, 3).tokens)
    request = Request("a", Prompt((7, 8, 9)), SamplingParams(), 100, grammar=grammar)
    logits = np.zeros(tokenizer().vocabulary + 5, np.float32)  # a model may have more than tokens
    (through,) = processors_for(request)
    for length in range(len(tokens) + 1):
        so_far = [7, 8, 9, *tokens[:length]]
        (anew,) = processors_for(request)
        before, after = through(so_far, logits.copy()), anew(so_far, logits.copy())
        assert np.array_equal(before, after)
        assert set(np.flatnonzero(before == 0)) == allowed(grammar, tokens[:length])


def test_replies_of_one_grammar_do_not_know_of_each_other() -> None:
    grammar = held(PERSON)
    alone = any_reply(grammar, 5)
    other = grammar.open()
    other.take(tokenizer().encode('{"name'))
    assert any_reply(grammar, 5) == alone


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            {"type": "object", "properties": {"a": {"items": {"not": {}}}}},
            "properties.a.items.*not",
        ),
        ({"anyOf": [{"type": "null"}, {"type": "string", "format": "foo"}]}, r"anyOf\[1\].*foo"),
        (
            {"type": "string", "pattern": "(?=a)b"},
            "format, at its root, cannot be enforced.*look-a",
        ),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ({"$ref": "#/$defs/none"}, "none"),
        ({"$ref": "https://example.com/schema"}, "example.com"),
        ({"type": "whatever"}, "whatever"),
        ({"enum": ["word " * 100] * 1000}, "262,144 characters"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"if": {}}}}, "if"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_where_it_says_so(
    schema: Any, words: str
) -> None:
    with pytest.raises(UnsupportedFeature, match=f"(?s){words}") as refusal:
        held(schema)
    assert refusal.value.param == "format"
    assert "<backtrace>" not in refusal.value.message
    with pytest.raises(UnsupportedFeature, match="'f'") as refusal:
        held(tools=(tool("f", {"properties": {"p": schema}, "required": ["p"]}),))
    assert refusal.value.param == "tools"


def test_a_schema_that_nothing_is_valid_by_is_refused() -> None:
    for schema in ({"$ref": "#"}, {"enum": []}, {"type": "string", "minLength": 2, "maxLength": 1}):
        with pytest.raises(UnsupportedFeature):
            held(schema)


def test_a_schema_nested_past_all_reason_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(3000):
        schema = {"items": schema}
    with pytest.raises(BadRequest):
        held(schema)
    with pytest.raises(BadRequest):
        held(dialect=GEMMA4, tools=(tool("f", {"properties": {"a": schema}}),))


def test_tools_that_no_call_can_be_made_of_are_refused() -> None:
    for dialect, name, parameters in (
        (PLAIN, "f", PERSON),
        (HERMES, "a b", PERSON),
        (HERMES, "f", {"type": "string"}),
        (QWEN, "f", {"properties": 5}),
    ):
        with pytest.raises(UnsupportedFeature):
            held(dialect=dialect, tools=(tool(name, parameters),))


@pytest.mark.parametrize("dialect", CALLING, ids=lambda dialect: dialect.name)
def test_whatever_a_tool_says_it_takes_is_enforced_or_refused(dialect: Dialect) -> None:
    """JSON allows anything where a schema belongs; `true` even is one."""
    for odd in (True, 5, 1.5, "string", ["object"], [[]], {"a": 5}, {"type": {}}, None):
        for parameters in ({"properties": odd}, {"properties": {"a": odd}, "required": ["a"]}):
            with suppress(UnsupportedFeature):
                held(dialect=dialect, tools=(tool("f", parameters),)).open()
        if odd and not isinstance(odd, dict):
            with pytest.raises(UnsupportedFeature, match="no object"):
                held(dialect=dialect, tools=(tool("f", odd),))


def test_who_asks_for_no_grammar_loads_nothing_for_it() -> None:
    code = "import sys, flm.server.app, flm.llm; sys.exit('llguidance' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_reply_that_breaks_its_grammar_fails() -> None:
    matcher = held(PERSON).open()
    with pytest.raises(GrammarFailed):
        matcher.take(tokenizer().encode("Hello"))
    with pytest.raises(GrammarFailed):
        matcher.allowed()


def test_grammars_used_lately_stay_compiled_and_no_more_than_are_to() -> None:
    grammars = Grammars(tokenizer(), kept_max=2)
    sources = [f"start: /{letter}+/" for letter in "abc"]
    a, b = (grammars.compile(source) for source in sources[:2])
    assert grammars.compile(sources[0]) is a
    grammars.compile(sources[2])
    assert grammars.compile(sources[0]) is a
    assert grammars.compile(sources[1]) is not b, "the one used longest ago went"
    none = Grammars(tokenizer())
    assert none.compile(sources[0]) is not none.compile(sources[0])
    together = Grammars(tokenizer(), kept_max=9)
    long = [f'start: "{letter * (SOURCE_CHARS_MAX // 2)}"' for letter in "ab"]
    first = together.compile(long[0])
    assert together.compile(long[0]) is first
    together.compile(long[1])
    assert together.compile(long[0]) is not first, "nor longer ones than one may be"


def test_replies_held_to_a_remembered_grammar_know_nothing_of_each_other() -> None:
    source = 'start: "a" | "b" /[0-9]{3}/'
    remembered, fresh = Grammars(tokenizer(), kept_max=1), Grammars(tokenizer())
    said = tokenizer().encode("b1")
    for _ in range(3):
        matcher, other = remembered.compile(source).open(), remembered.compile(source).open()
        expected = fresh.compile(source).open()
        for token in said:
            assert matcher.allowed() == expected.allowed()
            matcher.take([token])
            expected.take([token])
        assert matcher.allowed() == expected.allowed() != other.allowed()

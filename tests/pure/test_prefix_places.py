"""Every character of a rendered conversation has a place, and the right one where it is clear."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flm.core.chat import Conversation
from flm.prefix.places import Part, Pieces, Place, Places, char_at
from tests.pure.explained import (
    NOW,
    SOURCES,
    TOKENIZER,
    chat,
    reader,
    result,
    says,
    system,
    tool,
    user,
)

CALLED = '{"path": "src/main.py", "lines": [10, 25], "deep": {"er": "seven seas"}}'
TOOLS = (tool("look", "at one of the files"), tool("find", "what is in all of them"))
CONVERSATION = chat(
    system("Be brief, and say what the tools say."),
    user("Where is it?"),
    says("I look.", thought="Perhaps it is in the first one.", calls=CALLED),
    result("line 10: it is here"),
    tools=TOOLS,
)


def place_of(words: str, name: str, *, conversation: Conversation = CONVERSATION) -> Place:
    """Of where `words` first stand."""
    text = reader(name).template.render(conversation, now=NOW)
    at = text.index(words)
    return Places(conversation, text).span(at).moved(at)


@pytest.mark.parametrize("name", ["loops", "tools_first"])
@pytest.mark.parametrize(
    ("words", "where", "offset"),
    [
        ("say what", "messages[0].content", 14),
        ("Where", "messages[1].content", 0),
        ("is it?", "messages[1].content", 6),
        ("first one.", "messages[2].reasoning", 21),
        ("I look.", "messages[2].content", 0),
        ("main.py", "messages[2].tool_calls[0].arguments.path", 4),
        ("25", "messages[2].tool_calls[0].arguments.lines[1]", 0),
        ("seas", "messages[2].tool_calls[0].arguments.deep.er", 6),
        ("it is here", "messages[3].content", 9),
        ("look at one", "tools[0].function.description", 0),
        ("the path to find", "tools[1].function.parameters.properties.path.description", 0),
        ("find what is in", "tools[1].function.description", 0),
        ("<|im_start|>user", "template after messages[0]", 11),
        ("<|im_start|>system", "template", None),
    ],
)
def test_words_have_their_place(name: str, words: str, where: str, offset: int | None) -> None:
    place = place_of(words, name)
    assert str(place) == where
    assert offset is None or place.offset == offset


def test_what_a_template_writes_otherwise_is_found_or_the_templates() -> None:
    escaped = chat(user('He said "so be it",\nand went away.'), says("Yes."), user("Where?"))
    for write in ("m.content | tojson", "m.content | trim", "m.content"):
        source = "{% for m in messages %}" + "{{ m.role }}: {{ " + write + " }}\n{% endfor %}"
        here = reader("chatml", source=source)
        text = here.template.render(escaped, now=NOW)
        for words, where in (("away", 0), ("Yes", 1), ("Where", 2)):
            place = Places(escaped, text).span(text.index(words)).moved(text.index(words))
            assert str(place) == f"messages[{where}].content"
    shouted = reader("chatml", source="{% for m in messages %}{{ m.content | upper }} {% endfor %}")
    text = shouted.template.render(escaped, now=NOW)
    assert Places(escaped, text).span(text.index("WHERE")).place.part is Part.TEMPLATE


def test_keys_that_are_no_names_stay_out_of_the_log() -> None:
    plain = Place(Part.TOOL, "tools[1]", ".function.name", 0)
    assert plain.plain == "tools[1].function.name"
    for path in ('.a b"', ".x\n", ".é", "." + "a" * 41):
        assert Place(Part.TOOL, "tools[1]", path).plain == "tools[1]"
    assert Place(Part.CALL, "messages[1].tool_calls[0].arguments", ".secret").plain.endswith(
        "ments"
    )


@pytest.mark.parametrize("depth", [10, 900])
def test_deep_and_wide_json_ends(depth: int) -> None:
    deep: Any = "x"
    for _ in range(depth):
        deep = {"a": deep}
    wide = json.dumps({str(number): number for number in range(5000)})
    conversation = chat(user("Why?"), says("Well.", calls=wide), user("So?"), tools=(deep,))
    text = f"Why? Well. look {wide} {json.dumps(deep)} So?"
    places = Places(conversation, text)
    for at in range(0, len(text), 997):
        assert places.span(at).moved(at).offset >= 0


texts = st.text(st.sampled_from("ab é🙂\n"), max_size=60)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(texts, st.data())
def test_a_token_s_character_is_where_the_tokens_before_it_end(text: str, data: Any) -> None:
    tokens = TOKENIZER.encode(text)
    offset = data.draw(st.integers(0, len(tokens)))
    before = TOKENIZER.decode(tokens[:offset], skip_special=False).rstrip("\ufffd")
    assert char_at(text, tokens, offset, Pieces(TOKENIZER)) == len(before)


@pytest.mark.parametrize("name", SOURCES)
def test_long_contents_are_found_whatever_else_the_template_does(name: str) -> None:
    messages = [system("The system says a good many things here.")]
    for number in range(6):
        messages += [
            user(f"This is the question of number {number}."),
            says("a"),
            user("the"),
            says("ok"),
        ]
    conversation = chat(*messages, user("And this is the last question of all."))
    text = reader(name).template.render(conversation, now=NOW)
    places = Places(conversation, text)
    for number, message in enumerate(conversation.messages):
        content = message.content or ""
        if len(content) > 24:
            at = text.index(content)
            assert str(places.span(at + 3).place) == f"messages[{number}].content"

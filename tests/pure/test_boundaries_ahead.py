"""What is read ahead is what every prompt begins with that goes on from a reply."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flm.core.chat import Conversation
from flm.core.prompt import BoundaryKind, Prompt
from flm.prefix.boundaries import BoundaryFinder
from flm.text.template import ChatTemplate
from tests.pure.test_boundaries import (
    NOW,
    OPENER,
    SOURCES,
    TOKENIZER,
    TOOLS,
    TURN,
    chat,
    conversations,
    replies,
    result,
    says,
    system,
    template,
    texts,
    user,
)


def ahead(name: str, conversation: Conversation, **limits: Any) -> Prompt | None:
    finder = BoundaryFinder(template(name), TOKENIZER)
    return finder.ahead(conversation, now=NOW, **limits)


def text_of(prompt: Prompt | None) -> str:
    assert prompt
    return TOKENIZER.decode(prompt.tokens, skip_special=False)


@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_every_next_turn_begins_with_it(name: str, data: Any) -> None:
    renderer = template(name)
    finder = BoundaryFinder(renderer, TOKENIZER)
    for asked in data.draw(st.lists(conversations(), min_size=1, max_size=3)):
        tool = data.draw(st.sampled_from(["", "look", "find"]))
        reply = says(data.draw(replies), calls=tool)
        said = replace(asked, messages=(*asked.messages, reply))
        prompt = finder.ahead(said, now=NOW)
        if prompt is None:
            continue
        (boundary,) = prompt.boundaries
        assert boundary.offset == len(prompt.tokens)
        assert boundary.kind is (OPENER if tool else TURN)
        more = result(data.draw(texts)) if tool else user(data.draw(texts))
        other = replace(said, messages=(*said.messages, more))
        found = finder.find(other, now=NOW).tokens
        assert found[: len(prompt.tokens)] == prompt.tokens


@pytest.mark.parametrize("name", ["chatml", "drops", "dated", "tools_first", "system_in_user"])
def test_it_reaches_past_the_reply_to_the_user_s_words(name: str) -> None:
    prompt = ahead(name, chat(system("Be brief."), user("Why?"), says("Because."), tools=TOOLS))
    assert text_of(prompt).rpartition("Because.")[2] in (
        "<|im_end|>\n<|im_start|>user",
        "<end_of_turn>\n<start_of_turn>user",
    )


def test_after_a_tool_call_it_reaches_to_the_result() -> None:
    prompt = ahead("tools_first", chat(user("Why?"), says("So.", calls="look"), tools=TOOLS))
    assert text_of(prompt).endswith("</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>")
    assert prompt
    assert [each.kind for each in prompt.boundaries] == [BoundaryKind.OPENER]


@pytest.mark.parametrize("thought", [None, "let me see"])
def test_thoughts_of_a_tool_loop_that_ends_are_not_in_it(thought: str | None) -> None:
    loop = [says(None, thought="first this", calls="look"), result("it is so")]
    asked = chat(user("Why?"), *loop, says("Because.", thought=thought), tools=TOOLS)
    text = text_of(ahead("drops", asked))
    assert "it is so" in text
    assert "<think>" not in text


def test_there_is_none_where_nobody_can_go_on() -> None:
    asked = chat(user("Why?"), says("Because."))
    length = len(TOKENIZER.encode(text_of(ahead("chatml", asked))))
    assert ahead("chatml", asked, length_max=length)
    assert ahead("chatml", asked, length_max=length - 1) is None
    assert ahead("system_in_user", chat(user("Why?"), says("a"), user("b"), user("c"))) is None
    nothing = BoundaryFinder(ChatTemplate("{{ '' }}", bos_token="", eos_token=""), TOKENIZER)
    assert nothing.ahead(asked, now=NOW) is None


def test_only_what_is_new_is_encoded() -> None:
    finder = BoundaryFinder(template("chatml"), TOKENIZER)
    asked = chat(user("Why? " * 400))
    finder.find(asked, now=NOW)
    given: list[str] = []
    encode = TOKENIZER.encode

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(TOKENIZER, name)

        def encode(self, text: str) -> list[int]:
            given.append(text)
            return encode(text)

    finder._encoder._tokenizer = Watched()  # type: ignore[assignment]
    prompt = finder.ahead(chat(*asked.messages, says("So.")), now=NOW)
    assert prompt
    assert len(prompt.tokens) > 400
    assert max(map(len, given)) < 200

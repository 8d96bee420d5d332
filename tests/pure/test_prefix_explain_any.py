"""Any conversations, through any template, are explained or not; none is an error."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flm.core.chat import Conversation, Message
from flm.errors import BadRequest
from tests.pure.explained import SOURCES, reader, says

words = st.lists(
    st.sampled_from(
        [
            *(
                "the",
                " which",
                "\n",
                " ",
                "7",
                "09:41:07",
                "<|im_end|>",
                "é",
                "\ud800",
                "🙂",
                '"',
                "\\",
            )
        ]
    ),
    max_size=6,
).map("".join)
arguments = st.one_of(
    words,
    st.just("{}"),
    st.dictionaries(words, st.lists(words | st.integers()), max_size=3).map(json.dumps),
)
messages = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.none() | words,
    st.none() | words,
    st.lists(st.builds(says, st.none(), calls=arguments), max_size=2).map(
        lambda all_: tuple(call for one in all_ for call in one.tool_calls)
    ),
)
functions = st.fixed_dictionaries(
    {},
    optional={"name": words | st.integers(), "description": words, "parameters": st.none() | words},
)
tools = st.lists(
    st.one_of(functions, functions.map(lambda one: {"type": "function", "function": one})),
    max_size=3,
).map(tuple)
conversations = st.builds(Conversation, st.lists(messages, max_size=5).map(tuple), tools)


@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_any_pair_of_conversations_has_an_explanation_or_none(name: str, data: Any) -> None:
    here = reader(name, gain_min=0)
    for _ in range(3):
        stem = data.draw(conversations)
        cut = data.draw(st.integers(0, len(stem.messages)))
        more = replace(stem, messages=stem.messages[:cut] + data.draw(conversations).messages)
        for conversation in (stem, more):
            try:
                explanation = here.send(conversation)
            except BadRequest:
                continue  # the template refuses it
            if explanation:
                assert 0 <= explanation.offset <= explanation.differs_at <= explanation.length
                assert explanation.place.offset >= 0
                assert explanation.line()
                assert explanation.advice

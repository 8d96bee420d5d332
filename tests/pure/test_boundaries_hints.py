"""Where a client asks for a snapshot there is one, at a place that other prompts really share."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flm.core.chat import Conversation, Message
from flm.prefix.boundaries import HINTS_MAX, BoundaryFinder, text_prompt
from tests.pure.test_boundaries import (
    HEAD,
    HINT,
    NOW,
    SOURCES,
    TOKENIZER,
    TOOLS,
    TURN,
    chat,
    conversations,
    find,
    says,
    shared,
    system,
    template,
    texts,
    user,
)

STRIPS = SOURCES["chatml"].replace("message.content", "(message.content | trim)")


def marked(message: Message, *after: str) -> Message:
    """With a mark behind each of these texts."""
    content = message.content or ""
    return replace(message, marks=tuple(content.index(text) + len(text) for text in after))


def hints(conversation: Conversation, name: str = "chatml") -> list[str]:
    """What the prompt shares at each hint, as text."""
    prompt = find(name, conversation)
    offsets = [each.offset for each in prompt.boundaries if each.kind is HINT]
    return [TOKENIZER.decode(prompt.tokens[:offset], skip_special=False) for offset in offsets]


@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_whatever_comes_after_a_mark_the_tokens_before_it_stay(name: str, data: Any) -> None:
    """Read literally: what another conversation has there is another text, not the same again."""
    renderer = template(name)
    conversation = data.draw(conversations())
    index = data.draw(st.integers(0, len(conversation.messages) - 1))
    content = conversation.messages[index].content or ""
    mark = data.draw(st.integers(0, len(content)))
    messages = list(conversation.messages)
    messages[index] = replace(messages[index], marks=(mark,))
    asked = replace(conversation, messages=tuple(messages))
    plain = BoundaryFinder(template(name), TOKENIZER)
    try:
        before = plain.find(conversation, now=NOW)
    except Exception:
        return
    prompt = BoundaryFinder(renderer, TOKENIZER).find(asked, now=NOW)
    assert prompt.tokens == before.tokens, "a mark is never seen by the model"
    others = {each.offset for each in before.boundaries}
    assert others <= {each.offset for each in prompt.boundaries}, "nor takes a place away"
    ended = mark == len(content)
    if ended and index + 1 == len(messages):
        assert prompt == before
        return
    place = index + ended
    start = "" if ended else content[:mark]
    other = replace(messages[place], content=start + "Q" + data.draw(texts), tool_calls=())
    if ended:
        other = replace(other, reasoning=None)
    messages[place] = other
    try:
        text = renderer.render(replace(asked, messages=tuple(messages)), now=NOW)
    except Exception:
        return
    tokens = tuple(TOKENIZER.encode(text))
    for each in prompt.boundaries:
        if each.kind is HINT:
            assert tokens[: each.offset] == prompt.tokens[: each.offset]


def test_a_mark_inside_a_message_is_a_boundary_there() -> None:
    document = "A long document about birds."
    asked = chat(user(f"{document}\nWhich bird is it?"))
    (hint,) = hints(chat(marked(asked.messages[0], document)))
    assert hint == "<|im_start|>user\nA long document about birds."
    assert not hints(asked)


def test_a_mark_in_a_system_message_parts_what_is_stable_from_what_is_not() -> None:
    text = system("Be brief.\nToday is Sunday.")
    (hint,) = hints(chat(marked(text, "Be brief."), user("Why?"), tools=TOOLS), "tools_first")
    assert hint.endswith("Be brief.")
    assert "find" in hint


def test_a_mark_at_the_end_of_a_message_keeps_all_of_it() -> None:
    messages = (user("Why?"), marked(says("So."), "So."), user("And?"))
    (hint,) = hints(chat(*messages))
    assert hint.endswith("So.<|im_end|>\n<|im_start|>user")


def test_a_mark_at_the_end_of_the_system_message_is_the_head() -> None:
    prompt = find("chatml", chat(marked(system("Be brief."), "brief."), user("Why?")))
    assert [each.kind for each in prompt.boundaries] == [HEAD, TURN]


def test_a_mark_at_the_end_of_all_asks_for_what_is_kept_anyway() -> None:
    plain = chat(system("Be brief."), user("Why?"))
    asked = chat(system("Be brief."), marked(user("Why?"), "Why?"))
    assert find("chatml", asked) == find("chatml", plain)


def test_of_many_marks_the_last_count() -> None:
    words = ["one", "two", "six", "ten", "red", "blue"]
    text = user(" ".join(words) + " end")
    found = hints(chat(system("Be brief."), marked(text, *words)))
    assert [hint.rsplit(maxsplit=1)[-1] for hint in found] == words[-HINTS_MAX:]


def test_a_mark_in_what_the_template_strips_is_no_wrong_boundary() -> None:
    SOURCES["strips"] = STRIPS
    try:
        conversation = chat(replace(user("   Why?   "), marks=(2, 8)), says("So."), user("And?"))
        prompt = find("strips", conversation)
    finally:
        del SOURCES["strips"]
    text = TOKENIZER.decode(prompt.tokens, skip_special=False)
    assert "user\nWhy?<|im_end|>" in text
    for each in prompt.boundaries:
        assert text.startswith(TOKENIZER.decode(prompt.tokens[: each.offset], skip_special=False))
    assert shared(prompt, HINT) == "<|im_start|>user\nWhy?"


def test_a_mark_that_the_template_cannot_part_at_is_dropped_alone() -> None:
    picky = SOURCES["chatml"] + "{{ raise_exception('no') if messages[0].content != 'Why? So.' }}"
    SOURCES["picky"] = picky
    try:
        prompt = find("picky", chat(marked(user("Why? So."), "Why?")))
    finally:
        del SOURCES["picky"]
    assert [each.kind for each in prompt.boundaries] == [TURN]


# --- domains ---


def test_prompts_carry_their_domain_and_heads_are_remembered_by_it() -> None:
    renderer = template("chatml")
    finder = BoundaryFinder(renderer, TOKENIZER)
    conversation = chat(system("Be brief."), user("Why?"))
    renders = []
    for domain in ("a", "a", "b"):
        renderer.renders = 0
        prompt = finder.find(conversation, now=NOW, domain=domain)
        assert prompt.domain == domain
        renders.append(renderer.renders)
    assert renders[1] < renders[0] == renders[2], "b learns nothing from a, not even by the clock"
    assert finder.find(conversation, now=NOW, domain="a", length_max=1).domain == "a"
    assert text_prompt([1], domain="a").domain == "a"

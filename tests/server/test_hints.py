"""What clients say of caching is heard where it helps, and never shown to the model."""

from typing import Any

import pytest

from flm.core.prompt import BoundaryKind
from flm.engine.reader import Reader
from flm.server.apis.content import flat_text
from tests.server.asking import chat
from tests.server.house import SETTINGS, House

READER = Reader("m", SETTINGS)
MARK = {"cache_control": {"type": "ephemeral"}}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "description": "to look", "parameters": {}},
}


def part(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def user(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts), **more}


def hints(house: House) -> list[str]:
    """What the last prompt shares at each hint, as text."""
    prompt = house.requests[-1].prompt
    return [
        house.tokenizer.decode(prompt.tokens[: each.offset], skip_special=False)
        for each in prompt.boundaries
        if each.kind is BoundaryKind.HINT
    ]


def test_marks_stand_behind_their_parts() -> None:
    parts = ["one", part("two", **MARK), {"type": "thinking", "thinking": "hm"}, part("three")]
    text, marks, _ = flat_text(parts, place="messages[0].content", reader=READER)
    assert text == "one\ntwo\nthree"
    assert [text[:mark] for mark in marks] == ["one\ntwo"]
    assert flat_text([part("", **MARK), "a"], place="p", reader=READER) == ("\na", (0,), ())
    assert flat_text("a", place="p", reader=READER) == ("a", (), ())
    assert flat_text(None, place="p", reader=READER) == (None, (), ())


@pytest.mark.parametrize(
    "mark", [MARK, {"prompt_cache_breakpoint": {"mode": "explicit"}}, {"cache_control": "yes"}]
)
def test_a_marked_part_is_kept_for_the_next_question_about_it(
    house: House, mark: dict[str, Any]
) -> None:
    house.say("a", "b", "c")
    document = "bird " * 100
    first = chat(house, messages=[user(part(document, **mark), "Which bird?")])
    (hint,) = hints(house)
    assert hint.startswith("<|im_start|>user\nbird bird")
    assert "Which" not in hint
    second = chat(house, messages=[user(part(document, **mark), "How many?")])
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 100
    chat(house, messages=[user(part(document), "Which bird?")])
    assert house.requests[2].prompt.tokens == house.requests[0].prompt.tokens
    assert not hints(house)


def test_a_whole_message_can_be_marked(house: House) -> None:
    house.say("a")
    asked = {"role": "user", "content": "Why?", **MARK}
    chat(house, messages=[asked, {"role": "assistant", "content": "So."}, user("And?")])
    (hint,) = hints(house)
    assert hint == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant"


@pytest.mark.parametrize("value", [None, False, {}, ""])
def test_what_says_nothing_marks_nothing(house: House, value: Any) -> None:
    house.say("a")
    chat(house, messages=[user(part("one", cache_control=value), "two")])
    assert not hints(house)


def test_the_last_four_marks_count(house: House) -> None:
    house.say("a")
    chat(house, messages=[user(*(part(f"part {n}", **MARK) for n in range(7)), "end")])
    assert [hint[-1] for hint in hints(house)] == list("3456")


def test_a_tools_mark_is_not_shown_to_the_model(house: House) -> None:
    house.say("a", "b", "c")
    chat(house, tools=[TOOL])
    chat(house, tools=[{**TOOL, **MARK}])
    chat(house, tools=[{**TOOL, "function": {**TOOL["function"], **MARK}}])
    plain, *marked = (request.prompt for request in house.requests)
    assert marked == [plain, plain]
    assert "to look" in house.prompt_text()


# --- Claude Code's line that changes with every request ---


def billing(cch: str) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch={cch};"


@pytest.mark.parametrize("shape", ["block", "line", "message"])
def test_a_changing_billing_line_spoils_nothing(house: House, shape: str) -> None:
    """https://github.com/ggml-org/llama.cpp/pull/21793"""
    rules = "rule " * 200

    def ask(cch: str) -> dict[str, Any]:
        systems: dict[str, list[Any]] = {
            "block": [{"role": "system", "content": [part(billing(cch)), part(rules, **MARK)]}],
            "line": [{"role": "system", "content": f"{billing(cch)}\n{rules}"}],
            "message": [
                {"role": "system", "content": billing(cch)},
                {"role": "system", "content": rules},
            ],
        }
        house.say("so")
        return chat(house, messages=[*systems[shape], user("Why?")])["usage"]  # type: ignore[no-any-return]

    cold, warm = ask("eb6c6"), ask("0aaa9")
    assert house.prompt_text().startswith("<|im_start|>system\nrule rule")
    assert "billing" not in house.prompt_text()
    assert cold["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["prompt_tokens_details"]["cached_tokens"] >= 0.95 * warm["prompt_tokens"]


def test_a_billing_line_elsewhere_is_somebodys_text(house: House) -> None:
    house.say("a")
    rules = {"role": "system", "content": f"Be brief.\n{billing('a')}"}
    chat(house, messages=[rules, {"role": "system", "content": billing("b")}, user(billing("c"))])
    assert house.prompt_text().count("cch=") == 3

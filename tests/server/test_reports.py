"""What users reported of other servers does not happen here: agents whose prompts change a little.

`tests/server/test_reports_*.py` have the other reports.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from flm.core.chat import Conversation, Message, ToolCall
from flm.core.prompt import BoundaryKind
from flm.prefix.changes import Change
from flm.prefix.explain import Explanation, explain
from tests.pure.explained import SOURCES, tool
from tests.server.reported import LAYOUTS, Servers, said, say, two_servers, words

LOOK = tool("look")
TIMES = ["12:30:05", "12:30:17", "12:30:42", "12:30:58"]
kinds = pytest.mark.parametrize("kind", LAYOUTS)


@pytest.fixture(params=LAYOUTS)
def servers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Servers]:
    with two_servers(tmp_path, request.param) as opened:
        yield opened


def explained(servers: Servers, conversation: Conversation) -> Explanation:
    """Why it would be read again, were it asked now."""
    resident = servers.house.resident
    now = datetime.now()
    text = resident.template.render(conversation, now=now)
    prompt = resident.boundaries.find(conversation, now=now)
    finding = resident.thread.ask(lambda engine: engine.cache.look(prompt)).result()
    explanation = explain(conversation, text, finding, resident.tokenizer)
    assert explanation
    return explanation


def alike(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )


def test_a_billing_line_that_changes_keeps_no_system_prompt_from_being_reused(servers) -> None:
    """https://github.com/ggml-org/llama.cpp/pull/21793"""
    rules = {"type": "text", "text": words(1500)}

    def ask(cch: str, question: str) -> float:
        line = f"x-anthropic-billing-header: cc_version=2.1.100; cc_entrypoint=cli; cch={cch};"
        system = say("system", [{"type": "text", "text": line}, rules])
        read = servers.chat([system, say("user", question)])
        assert read.length > 3000
        return read.cached / read.length

    assert ask("aaaaa", "Which way?") == 0
    assert ask("bbbbb", "Which way?") == 1
    assert ask("ccccc", "How far is it?") >= 0.95


def clock(time: str) -> tuple[str, str]:
    rules = f"{words(900, 1)} It is {time} now. {words(900, 2)}"
    return rules, "What time is it?"


def test_seconds_in_the_system_prompt_cost_no_more_than_what_follows_them(servers) -> None:
    """https://github.com/open-webui/open-webui/issues/28527"""
    cached, prompts = [], []
    for time in TIMES:
        rules, question = clock(time)
        cached.append(servers.chat([say("system", rules), say("user", question)]).cached)
        prompts.append(servers.prompt.tokens)
    fork = min(alike(prompts[0], prompt) for prompt in prompts[1:])
    assert 1500 < fork < len(prompts[0]) / 2 + 100
    assert cached[0] == 0
    assert all(found == fork for found in cached[2:])
    assert cached[1] == (0 if servers.house.resident.bundle.layouts["float32"].state else fork)


def test_seconds_in_the_system_prompt_are_named_with_their_place(servers) -> None:
    """https://github.com/open-webui/open-webui/issues/28527"""
    for time in TIMES[:2]:
        rules, question = clock(time)
        servers.chat([say("system", rules), say("user", question)])
    rules, question = clock(TIMES[2])
    found = explained(servers, Conversation((Message("system", rules), Message("user", question))))
    assert found.change is Change.TIME
    assert found.place.whole == "messages[0].content"
    at = rules.index(TIMES[2])
    assert at <= found.place.offset < at + len(TIMES[2])
    assert "move the time" in found.advice


# --- https://github.com/stanfordnlp/dspy/issues/10216: arguments written another way ---

ARGUMENTS = {"path": "a <b> & 'c'", "depth": 3, "deep": {"first": 1, "second": [1, 2]}}


def called(arguments: str, *, rounds: int = 1) -> list[dict[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    later = {**call, "function": {"name": "look", "arguments": '{"path": "later"}'}}
    messages = [say("system", words(200)), say("user", "What is there?")]
    for each in [call, later][:rounds]:
        messages.append(say("assistant", "", tool_calls=[each]))
        messages.append(say("tool", words(100, 4), tool_call_id="1"))
    return messages


@pytest.fixture(params=LAYOUTS)
def loops(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Servers]:
    """A template that writes arguments as JSON."""
    with two_servers(tmp_path, request.param, template=SOURCES["loops"]) as opened:
        yield opened


@pytest.mark.parametrize("indent", [None, 2])
def test_arguments_that_say_the_same_are_reused_however_they_are_spaced(loops, indent) -> None:
    before = loops.chat(called(json.dumps(ARGUMENTS)), tools=[LOOK])
    after = loops.chat(called(json.dumps(ARGUMENTS, indent=indent), rounds=2), tools=[LOOK])
    assert before.length - 4 <= after.cached
    assert "a <b> & 'c'" in loops.house.prompt_text(), "written as it is, not as HTML"
    assert '"depth": 3, "deep": {"first": 1, "second": [1, 2]}' in loops.house.prompt_text()


def test_arguments_in_another_order_are_said_to_be_what_is_read_again(loops) -> None:
    first = loops.chat(called("{}")[:2], tools=[LOOK])
    loops.chat(called(json.dumps(ARGUMENTS)), tools=[LOOK])
    moved = json.dumps(dict(reversed(ARGUMENTS.items())))
    call = ToolCall("1", "look", moved)
    conversation = Conversation(
        (
            Message("system", words(200)),
            Message("user", "What is there?"),
            Message("assistant", "", tool_calls=(call,)),
            Message("tool", words(100, 4), tool_call_id="1"),
        ),
        (LOOK,),
    )
    found = explained(loops, conversation)
    assert found.change is Change.REORDERED_KEYS
    assert found.place.whole.startswith("messages[2].tool_calls[0]")
    again = loops.chat(called(moved), tools=[LOOK])
    assert first.length - 8 <= again.cached < again.length - 100


# --- https://github.com/QwenLM/Qwen3.8/issues/131: thoughts that later prompts drop ---

THOUGHTS = SOURCES["tools_first"]
STABLE = THOUGHTS.replace("loop.index0 > ns.last", "(keep_thoughts or loop.index0 > ns.last)")


def rounds(count: int) -> list[dict[str, Any]]:
    """A turn, and then a tool loop with a thought in each round."""
    messages = [say("system", words(150)), say("user", words(80, 1)), say("assistant", words(90))]
    messages.append(say("user", f"Find it. {words(80, 2)}"))
    for number in range(count):
        call = {"name": "look", "arguments": json.dumps({"path": f"place {number}"})}
        thought = f"Hm, {words(20, number)}."
        calls = [{"id": f"{number}", "type": "function", "function": call}]
        messages.append(say("assistant", "", reasoning_content=thought, tool_calls=calls))
        messages.append(say("tool", words(40, number + 3), tool_call_id=f"{number}"))
    return messages


def joke(servers: Servers, **fields: Any) -> tuple[int, int, int, int]:
    """After ten rounds. Tokens: to the system's end, to the last real user message, cached, and
    what the last round had.
    """
    opening = servers.chat(rounds(0), tools=[LOOK], **fields)
    head = next(b.offset for b in servers.prompt.boundaries if b.kind is BoundaryKind.HEAD)
    before = opening
    for count in range(1, 11):
        read = servers.chat(rounds(count), tools=[LOOK], **fields)
        assert read.cached >= before.length - 8, f"round {count}"
        before = read
    more = [say("assistant", "There it is."), say("user", "Tell me a joke.")]
    last = servers.chat([*rounds(10), *more], tools=[LOOK], **fields)
    return head, opening.length, last.cached, before.length


@kinds
def test_dropped_thoughts_cost_no_more_than_the_tool_loop(tmp_path: Path, kind: str) -> None:
    with two_servers(tmp_path, kind, template=THOUGHTS) as servers:
        head, opening, cached, _ = joke(servers)
        assert head + 200 < opening - 8 <= cached
        assert "Hm," not in servers.house.prompt_text()


@kinds
def test_thoughts_that_are_kept_cost_nothing(tmp_path: Path, kind: str) -> None:
    with two_servers(tmp_path, kind, template=STABLE) as servers:
        fields = {"chat_template_kwargs": {"keep_thoughts": True}}
        _, _, cached, before = joke(servers, **fields)
        assert cached >= before - 8
        assert "Hm," in servers.house.prompt_text()


def test_what_is_said_is_compared(servers) -> None:
    """The harness itself: texts are not empty, and differ where prompts do."""
    texts = {servers.chat([say("user", words(50, seed))]).text for seed in range(8)}
    assert len(texts) == 8
    assert said({"content": None}) == "|" not in texts

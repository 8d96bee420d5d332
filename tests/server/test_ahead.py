"""After a reply, what the next turn begins with is read while nobody waits."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flm.core.chat import Conversation, Message
from flm.core.event import Finished, FinishReason, Usage
from flm.core.prompt import BoundaryKind
from flm.core.request import Priority, Request, SamplingParams
from flm.engine.conversation import Conversations
from flm.engine.terms import Terms
from flm.llm import LLM
from flm.prefix.tally import AHEAD, AHEAD_S
from tests.server.asking import chat, post
from tests.server.house import LAYOUT, SETTINGS, STATEFUL, House, open_house
from tests.server.test_leaving import idle, until

ON = replace(SETTINGS, read_ahead=True)
TOOLS_FIRST = Path(__file__).parents[1] / "fixtures" / "templates" / "tools_first.jinja"
LONG = "a bird in the hand is worth two in the bush " * 10
ASKED = {"role": "user", "content": "Which bird?"}
NEXT = {"role": "user", "content": "And now?"}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
NEW = 20  # tokens at most, of that message and what opens a reply


@pytest.fixture(params=["rows", "state"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    layout = LAYOUT if request.param == "rows" else STATEFUL
    with open_house(tmp_path, ON, layout=layout) as opened:
        yield opened


def ask(house: House, *messages: dict[str, Any], **fields: Any) -> tuple[dict[str, Any], int, int]:
    """The message, how many tokens were kept and how many there were."""
    reply = chat(house, messages=list(messages), **fields)
    until(lambda: idle(house))
    usage = reply["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    message = reply["choices"][0]["message"]
    said = {"role": "assistant", "content": message["content"]}
    if calls := message.get("tool_calls"):
        said["tool_calls"] = calls
    return said, cached, usage["prompt_tokens"]


def read_ahead(house: House) -> list[Request]:
    return [each for each in house.requests if each.priority is Priority.IDLE]


def counted(house: House, *outcome: str) -> float:
    work = house.resident.thread.ask(lambda engine: engine.cache.tally.of(AHEAD, *outcome))
    return work.result(timeout=10)


def test_the_next_turn_reads_only_what_is_new(house: House) -> None:
    house.say(LONG)
    said, _, _ = ask(house, ASKED)
    (ahead,) = read_ahead(house)
    assert [each.kind for each in ahead.prompt.boundaries] == [BoundaryKind.TURN]
    after, cached, length = ask(house, ASKED, said, NEXT, max_tokens=20)
    assert cached == len(ahead.prompt.tokens)
    assert length - cached < NEW, "the new message and what opens the reply"
    assert counted(house, "read") == counted(house, "used") > 90
    cold = post(house, messages=[ASKED, said, NEXT], max_tokens=20, cache_salt="other")
    assert after["content"] == cold.json()["choices"][0]["message"]["content"]


def test_switched_off_it_is_not_read(tmp_path: Path) -> None:
    with open_house(tmp_path, SETTINGS) as house:
        house.say(LONG)
        said, _, first = ask(house, ASKED)
        _, cached, _ = ask(house, ASKED, said, NEXT)
        assert cached <= first
        assert not read_ahead(house)


@pytest.mark.parametrize("fields", [{"n": 2}, {"max_tokens": 3}])
def test_what_nobody_goes_on_from_or_is_short_costs_nothing(
    house: House, fields: dict[str, Any]
) -> None:
    house.say(LONG, LONG)
    ask(house, ASKED, **fields)
    assert counted(house, "read") == 0


def test_a_plain_completion_is_not_gone_on_from(tmp_path: Path) -> None:
    with open_house(tmp_path, ON) as house:
        house.say(LONG)
        LLM(house.resident).complete("Once")
        until(lambda: idle(house))
        assert not read_ahead(house)


@pytest.mark.parametrize("reason", FinishReason)
def test_only_a_reply_that_ended_by_itself_is_gone_on_from(
    house: House, reason: FinishReason
) -> None:
    conversations = Conversations(house.resident)
    asked = Conversation((Message("user", LONG),))
    (answer,) = conversations.chat(asked, Terms(SamplingParams()), request_id="one")
    conversations.read_ahead(answer)  # which has not ended yet
    answer.read(Finished("one", reason, Usage(1, 0, 1), text="so"))
    conversations.read_ahead(answer)
    until(lambda: idle(house))
    assert len(read_ahead(house)) == (reason is not FinishReason.CANCELLED)


def test_streamed_replies_are_gone_on_from_too(house: House) -> None:
    house.say(LONG)
    assert post(house, messages=[ASKED], stream=True).status_code == 200
    until(lambda: idle(house))
    assert LONG.strip() in house.prompt_text()
    assert counted(house, "read") > 90


def test_thoughts_that_the_template_drops_are_not_read(tmp_path: Path) -> None:
    with open_house(tmp_path, ON, template=TOOLS_FIRST.read_text()) as house:
        house.say(f"let me see </think>{LONG}")
        said, _, _ = ask(house, {"role": "system", "content": "Be brief."}, ASKED)
        assert "see" not in house.prompt_text()
        ahead = len(read_ahead(house)[0].prompt.tokens)
        _, cached, length = ask(
            house, {"role": "system", "content": "Be brief."}, ASKED, said, NEXT
        )
        assert cached == ahead > length - NEW


def test_a_reply_that_the_client_began_comes_back_in_one(house: House) -> None:
    house.say(f"ird. {LONG}")
    said, _, _ = ask(house, ASKED, {"role": "assistant", "content": "The b"})
    said["content"] = "The b" + said["content"]
    _, cached, length = ask(house, ASKED, said, NEXT)
    assert cached > length - NEW


def look(**arguments: str) -> str:
    call = {"name": "look", "arguments": arguments}
    return f"So. <tool_call>{json.dumps(call)}</tool_call>"


def result(said: dict[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "a bird"}


def resorted(said: dict[str, Any]) -> dict[str, Any]:
    """As some agents send calls back: keys sorted, without spaces."""
    (call,) = json.loads(json.dumps(said["tool_calls"]))
    arguments = json.loads(call["function"]["arguments"])
    call["function"]["arguments"] = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
    return {**said, "tool_calls": [call]}


def test_after_a_call_its_result_alone_is_new(house: House) -> None:
    house.say(look(where=LONG, at="once"))
    said, _, _ = ask(house, ASKED, tools=TOOLS)
    (ahead,) = read_ahead(house)
    assert [each.kind for each in ahead.prompt.boundaries] == [BoundaryKind.OPENER]
    _, cached, length = ask(house, ASKED, said, result(said), tools=TOOLS, max_tokens=20)
    assert cached == len(ahead.prompt.tokens) > length - NEW


def test_calls_are_read_ahead_as_their_client_sends_them(house: House) -> None:
    house.say(look(where="there", at="once"), look(where=LONG, at="once"))
    said, _, _ = ask(house, ASKED, tools=TOOLS)
    turn = [ASKED, resorted(said), result(said)]
    said, _, _ = ask(house, *turn, tools=TOOLS)
    _, cached, length = ask(house, *turn, resorted(said), result(said), tools=TOOLS, max_tokens=20)
    assert cached > length - NEW


def test_what_is_read_ahead_stays_in_its_domain(house: House) -> None:
    house.say(LONG)
    said, _, _ = ask(house, ASKED, cache_salt="one")
    _, cached, length = ask(house, ASKED, said, NEXT, cache_salt="other")
    assert cached == 0
    assert counted(house, "used") == 0
    _, cached, _ = ask(house, ASKED, said, NEXT, cache_salt="one")
    assert cached > length - NEW


def test_the_facade_reads_ahead_as_well(house: House) -> None:
    llm = LLM(house.resident)
    house.say(LONG)
    said = llm.chat("Which bird?").text
    until(lambda: bool(read_ahead(house)) and idle(house))
    turn = [ASKED, {"role": "assistant", "content": said}, NEXT]
    usage = llm.chat(turn).usage
    assert usage.prompt_tokens - usage.cached_tokens < NEW


def test_a_mistake_of_ours_in_it_fails_no_request(
    house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by mistake")

    monkeypatch.setattr(house.resident.boundaries, "ahead", broken)
    house.say("so", "so")
    for stream in (False, True):
        assert post(house, messages=[ASKED], stream=stream).status_code == 200
    assert capsys.readouterr().err.count("ZeroDivisionError: by mistake") == 2


def test_conversations_that_take_turns_each_read_only_what_is_new(house: House) -> None:
    chats = [[{"role": "user", "content": f"{number}: which bird?"}] for number in range(3)]
    for turn in range(2):
        for messages in chats:
            house.say(LONG[: -len(LONG) // 2])
            said, cached, length = ask(house, *messages)
            assert turn == 0 or cached > length - NEW
            messages += [said, NEXT]
    pending = house.resident.thread.ask(lambda engine: _pending(engine.cache)).result(timeout=10)
    assert (
        counted(house, "read") == sum(counted(house, each) for each in ("used", "wasted")) + pending
    )
    seconds = house.resident.thread.ask(lambda engine: engine.cache.tally.of(AHEAD_S))
    assert seconds.result(timeout=10) > 0


def _pending(cache: Any) -> int:
    return sum(node.slot.ahead for node in cache.slots.values())

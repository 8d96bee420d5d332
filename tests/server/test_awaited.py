"""After a reply with calls its conversation is awaited, and people can see for how long."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from flm.core.chat import Message
from flm.engine.engine import Engine
from flm.llm import LLM
from flm.prefix.tally import AWAITED
from tests.server.asking import chat, post
from tests.server.house import LAYOUT, SETTINGS, STATEFUL, House, open_house, serving
from tests.server.test_cache_command import Terminal
from tests.server.test_leaving import idle, until
from tests.server.test_prefix_cache import KEYS, Client
from tests.server.test_tools import LOOK, TOOLS

ASKED = {"role": "user", "content": "Where is the bird? " * 20}
TOOK_S = 30.0


@dataclass
class Watched:
    """A house whose cache has a clock of the test's."""

    house: House
    now: float = 0.0

    def ask(self, work: Any) -> Any:
        return self.house.resident.thread.ask(work).result(timeout=10)

    def __post_init__(self) -> None:
        self.ask(lambda engine: setattr(engine.cache, "clock", lambda: self.now))

    def wait(self, seconds: float) -> None:
        """Once the engine has heard of what was before."""
        self.ask(lambda engine: None)
        self.now += seconds

    def awaited_s(self) -> list[float]:
        def look(engine: Engine) -> list[float]:
            awaited = engine.cache.awaited
            left = (awaited.left_s(slot, self.now) for slot in awaited.slots(self.now))
            return [each for each in left if each]

        found: list[float] = self.ask(look)
        return found

    def counted(self, *outcome: str) -> int:
        found: int = self.ask(lambda engine: engine.cache.tally.of(AWAITED, *outcome))
        return found


@pytest.fixture(params=["rows", "state"])
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    layout = LAYOUT if request.param == "rows" else STATEFUL
    with open_house(tmp_path, SETTINGS, layout=layout) as house:
        yield Watched(house)


def say(watched: Watched, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    reply = chat(watched.house, messages=list(messages), tools=TOOLS, **fields)
    message: dict[str, Any] = reply["choices"][0]["message"]
    return message


def result(said: dict[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "in the sky"}


def test_a_second_call_is_awaited_for_as_long_as_the_first_took(watched: Watched) -> None:
    watched.house.say(LOOK, LOOK, "There.")
    first = say(watched, ASKED)
    assert watched.awaited_s() == [], "nobody knows yet"
    watched.wait(TOOK_S)
    turn = [ASKED, first, result(first)]
    second = say(watched, *turn)
    assert watched.awaited_s() == [TOOK_S]
    watched.wait(1.0)
    assert watched.awaited_s() == [TOOK_S - 1]
    say(watched, *turn, second, result(second))
    assert watched.awaited_s() == []
    assert (watched.counted("first"), watched.counted("in_time")) == (1, 1)


def test_so_is_one_that_is_streamed(watched: Watched) -> None:
    watched.house.say(LOOK, LOOK)
    first = say(watched, ASKED)
    watched.wait(TOOK_S)
    messages = [ASKED, first, result(first)]
    assert post(watched.house, messages=messages, tools=TOOLS, stream=True).status_code == 200
    assert watched.awaited_s() == [TOOK_S]


@pytest.mark.parametrize(
    ("said", "fields"),
    [("There.", {}), (LOOK, {"max_tokens": 20}), (LOOK, {"tool_choice": "none"})],
)
def test_who_calls_nothing_is_not_awaited(
    watched: Watched, said: str, fields: dict[str, Any]
) -> None:
    watched.house.say(LOOK, said)
    first = say(watched, ASKED)
    watched.wait(TOOK_S)
    say(watched, ASKED, first, result(first), **fields)
    assert watched.awaited_s() == []


def test_the_facade_is_awaited_as_well(watched: Watched) -> None:
    watched.house.say(LOOK, LOOK)
    llm, asked = LLM(watched.house.resident), Message("user", ASKED["content"])
    said = llm.chat([asked], tools=TOOLS)
    watched.wait(TOOK_S)
    found = Message("tool", "in the sky", tool_call_id=said.tool_calls[0].id)
    llm.chat([asked, Message("assistant", None, tool_calls=said.tool_calls), found], tools=TOOLS)
    assert watched.awaited_s() == [TOOK_S]


def test_what_was_read_ahead_is_what_is_awaited(tmp_path: Path) -> None:
    with open_house(tmp_path, replace(SETTINGS, read_ahead=True), layout=STATEFUL) as house:
        watched = Watched(house)
        house.say(LOOK, LOOK.replace("the sky", "the sky and the trees " * 8))
        first = say(watched, ASKED)
        watched.wait(TOOK_S)
        say(watched, ASKED, first, result(first))
        until(lambda: idle(house))
        cached = watched.ask(lambda engine: [*engine.cache.slots.items()])
        deepest, node = max(cached, key=lambda each: each[1].end)
        assert node.slot.ahead > 0
        assert watched.ask(lambda engine: engine.cache.awaited.left_s(deepest, watched.now)) == 30


def test_show_says_for_how_long(
    watched: Watched, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(watched.house.residence, KEYS) as url:
        client, flm = Client(url), Terminal(url.rpartition(":")[2], capsys)
        watched.house.say(LOOK, LOOK)
        fields: dict[str, Any] = {"tools": TOOLS, "max_tokens": 200, "model": "tiny:1m"}
        sent = {"messages": [ASKED], **fields}
        reply = client.post("/v1/chat/completions", json=sent).json()
        first = reply["choices"][0]["message"]
        watched.wait(TOOK_S)
        sent["messages"] = [ASKED, first, result(first)]
        assert client.post("/v1/chat/completions", json=sent).status_code == 200
        awaited = [each["awaited_s"] for each in client.show()["tree"]]
        assert [each for each in awaited if each] == [TOOK_S]
        assert flm("show")[1].count("awaited for 30 s") == 1

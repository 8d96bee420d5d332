"""Many at once: persons before programs, and lanes dealt out fairly between keys."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.crowd import ACTIVE, crowd
from flm.core.request import Priority
from flm.core.step import Step
from flm.prefix.tally import PARKED
from tests.server.house import SETTINGS, STATEFUL, House, in_process, open_house, serving
from tests.server.test_leaving import caller, until

ROOM = 2**20  # bytes for parked lanes
CHUNK_LEN = 32
STORY = [{"role": "user", "content": "Tell it all. " * 20}]


@pytest.fixture
def four_lanes(tmp_path: Path) -> Iterator[House]:
    """Four lanes; a prompt of a program takes many chunks."""
    settings = replace(SETTINGS, lanes=4, queue_max=16)
    with open_house(
        tmp_path, settings, layout=STATEFUL, chunk_len_max=CHUNK_LEN, parked_bytes=ROOM
    ) as house:
        yield house


def agent(number: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Agent {number} of many. " + "Read on. " * 60}]
    return {"model": "tiny:1m@agent", "messages": messages, "max_tokens": 12, "seed": number}


async def say(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


def test_a_person_is_read_next_while_four_agents_read_long_prompts(four_lanes: House) -> None:
    passes: list[Step] = []
    gates, run = {1: threading.Event(), 6: threading.Event()}, four_lanes.runner.run

    def running(step: Step) -> Any:
        passes.append(step)
        return run(step)

    def held() -> None:
        if gate := gates.get(len(passes)):
            assert gate.wait(30), "nobody opened the gate"

    four_lanes.runner.run = running  # type: ignore[method-assign]
    four_lanes.during_passes(held)
    thread = four_lanes.resident.thread

    async def ask() -> list[str]:
        async with in_process(four_lanes) as client:
            agents = [asyncio.create_task(say(client, agent(number))) for number in range(4)]
            while thread.running + thread.waiting < 4:
                await asyncio.sleep(0.001)
            gates[1].set()
            while len(passes) < 6:
                await asyncio.sleep(0.001)
            body = {"model": "tiny:1m", "messages": [{"role": "user", "content": "Hi"}]}
            person = asyncio.create_task(say(client, {**body, "max_tokens": 3}))
            while not thread.waiting:
                await asyncio.sleep(0.001)
            gates[6].set()
            await person
            return [await each for each in agents]

    said = asyncio.run(ask())
    assert thread.cache.tally.of(PARKED) == 1
    assert len(passes[5].spans[0].tokens) == CHUNK_LEN
    own = four_lanes.requests[-1].prompt.tokens
    assert passes[6].spans[0].tokens == own[: len(passes[6].spans[0].tokens)]
    assert said == undisturbed(four_lanes)


def undisturbed(house: House) -> list[str]:
    """What the agents are told when nobody else is there."""

    async def ask() -> list[str]:
        async with in_process(house) as client:
            return [await say(client, agent(number)) for number in range(4)]

    return asyncio.run(ask())


def test_a_parked_request_whose_client_leaves_leaves_nothing_behind(tmp_path: Path) -> None:
    settings = replace(SETTINGS, lanes=1)
    with ExitStack() as stack:
        house = stack.enter_context(open_house(tmp_path, settings, parked_bytes=ROOM))
        url = stack.enter_context(serving(house.residence))
        slow, thread = threading.Event(), house.resident.thread
        house.during_passes(lambda: (slow.wait(0.005), None)[1])
        house.say("never heard ", "a person's ", end=False)
        with caller(url, model="tiny:1m@agent", messages=STORY):
            until(lambda: thread.running == 1)
            person = stack.enter_context(caller(url))
            until(lambda: thread.standing["parked", Priority.AGENT] == 1)
            assert thread.parked.host_bytes > 0
        until(lambda: not thread.standing["parked", Priority.AGENT])
        assert thread.parked.host_bytes == 0
        assert thread.standing["running", Priority.INTERACTIVE] == 1
        person.close()
        until(lambda: thread.idle and thread.running == 0)


HELLO = [{"role": "user", "content": "hello"}]
DIALECTS = [
    ("/v1/chat/completions", {"messages": HELLO}),
    ("/v1/completions", {"prompt": "Once"}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 4}),
    ("/v1/responses", {"input": "hello"}),
    ("/api/chat", {"messages": HELLO}),
    ("/api/generate", {"prompt": "hello"}),
]


@pytest.mark.parametrize(("path", "body"), DIALECTS, ids=[path for path, _ in DIALECTS])
def test_every_api_knows_classes_and_owners(house: House, path: str, body: dict[str, Any]) -> None:
    settings = replace(SETTINGS, api_keys=("one", "two"))
    house.say(*["so"] * 3)

    async def ask(key: str, **fields: Any) -> None:
        async with in_process(house, settings) as client:
            response = await client.post(
                path,
                json={"model": "tiny:1m", "stream": False, **body, **fields},
                headers={"Authorization": f"Bearer {key}"},
            )
            assert response.status_code == 200, response.text

    asyncio.run(ask("one", model="tiny:1m@agent"))
    asyncio.run(ask("two", **{"class": "agent"}))
    asyncio.run(ask("one"))
    first, second, third = house.requests
    assert [each.priority for each in house.requests] == [
        Priority.AGENT,
        Priority.AGENT,
        Priority.INTERACTIVE,
    ]
    assert first.owner == third.owner != second.owner
    assert {"one", "two"}.isdisjoint({first.owner, second.owner}), "no key leaves the server's edge"


@pytest.mark.slow
def test_a_crowd_leaves_nothing_behind(tmp_path: Path) -> None:
    """64 idle and 16 active connections, four lanes; `python -m bench.crowd` has it for longer."""
    seen = crowd(0.4, tmp_path)
    assert seen.parked
    assert len(seen.guests) == ACTIVE
    assert all(guest.seen["answered"] for guest in seen.guests)

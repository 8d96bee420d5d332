"""FastFlowLM's two routes: what is running, and ending it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from threading import Event
from typing import Any

import httpx
import pytest

from tests.server.house import SETTINGS, House, in_process

HELLO: Any = [{"role": "user", "content": "hello"}]
BODY: Any = {"model": "tiny:1m", "messages": HELLO, "stream": True}


@asynccontextmanager
async def talking(house: House, **fields: Any) -> AsyncIterator[tuple[Any, AsyncIterator[str]]]:
    """A reply that has begun, and stands still after a few tokens until something is cancelled."""
    house.say(*["on and on"] * fields.get("n", 1), end=False)
    passes, stopped = count(), Event()
    house.during_passes(lambda: next(passes) > 3 and stopped.wait(30))
    cancel = house.resident.thread.cancel

    def cancel_and_go_on(request_id: str) -> None:
        cancel(request_id)
        stopped.set()

    house.resident.thread.cancel = cancel_and_go_on  # type: ignore[method-assign]
    try:
        async with (
            httpx.AsyncClient(base_url=house.url, timeout=60) as client,
            client.stream("POST", "/v1/chat/completions", json={**BODY, **fields}) as response,
        ):
            lines = (line async for line in response.aiter_lines() if line.startswith("data: "))
            first = json.loads((await anext(lines)).removeprefix("data: "))
            yield first, lines
    finally:
        stopped.set()


async def cancel(house: House, request_id: str) -> bool:
    async with httpx.AsyncClient(base_url=house.url) as client:
        reply = (await client.post("/api/cancel", json={"request_id": request_id})).json()
    assert reply.keys() == {"cancelled", "message"}
    return bool(reply["cancelled"])


@pytest.mark.parametrize("own", [True, False])
def test_a_request_ends_by_its_own_name_or_by_ours(house: House, own: bool) -> None:
    async def scene() -> list[str]:
        async with talking(house, request_id="mine") as (first, lines):
            assert await cancel(house, "mine" if own else first["id"])
            return [line async for line in lines]

    *_, last, done = asyncio.run(scene())
    assert done == "data: [DONE]"
    (choice,) = json.loads(last.removeprefix("data: "))["choices"]
    assert choice["finish_reason"] == "stop"


def test_all_answers_of_a_request_end_those_that_have_not_begun_too(house: House) -> None:
    async def scene() -> list[str]:
        async with talking(house, request_id="mine", n=5) as (_, lines):
            assert await cancel(house, "mine")
            return [line async for line in lines]

    lines = asyncio.run(scene())
    ended = [line for line in lines if '"finish_reason":"stop"' in line]
    assert len(ended) == 5
    assert lines[-1] == "data: [DONE]"


def test_what_has_ended_or_never_was_is_not_cancelled(house: House) -> None:
    async def scene() -> None:
        assert not await cancel(house, "nobody")
        house.say("so")
        async with httpx.AsyncClient(base_url=house.url) as client:
            await client.post("/v1/chat/completions", json={**BODY, "request_id": "mine"})
        assert not await cancel(house, "mine")

    asyncio.run(scene())


def test_only_its_own_key_ends_a_request(house: House) -> None:
    settings = replace(SETTINGS, api_keys=("one", "two"))
    house.say("so")
    told: list[bool] = []

    async def scene() -> None:
        async with in_process(house, settings) as client:

            async def end(key: str) -> None:
                headers = {"Authorization": f"Bearer {key}"}
                body = {"request_id": "mine"}
                reply = await client.post("/api/cancel", json=body, headers=headers)
                told.append(reply.json()["cancelled"])

            loop = asyncio.get_running_loop()

            def others_try() -> None:
                house.during_passes(lambda: None)
                for key in ("two", "one"):
                    asyncio.run_coroutine_threadsafe(end(key), loop).result()

            house.during_passes(others_try)
            headers = {"Authorization": "Bearer one"}
            body = {**BODY, "request_id": "mine"}
            await client.post("/v1/chat/completions", json=body, headers=headers)

    asyncio.run(scene())
    assert told == [False, True]


def test_the_status_says_whether_a_lane_is_free(house: House) -> None:
    house.say("on", "on")
    thread = house.resident.thread
    told: list[tuple[bool, int]] = []

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        async with in_process(house) as client:

            async def note() -> None:
                status = (await client.get("/api/npu/status")).json()
                assert "on null" in status["message"]
                told.append((status["npu_available"], status["active_requests"]))

            async def ask() -> None:
                await client.post("/v1/chat/completions", json=BODY)

            async def follow() -> None:
                others.append(asyncio.create_task(ask()))
                while not thread.waiting:
                    await asyncio.sleep(0)

            def look(meanwhile: list[Any]) -> None:
                for each in (note, *meanwhile):
                    asyncio.run_coroutine_threadsafe(each(), loop).result()

            others: list[Any] = []
            steps = iter([[follow, note], []])
            house.during_passes(lambda: look(found) if (found := next(steps, None)) else None)
            await note()
            await ask()
            await asyncio.gather(*others)

    asyncio.run(scene())
    assert told[:3] == [(True, 0), (True, 1), (False, 1)]

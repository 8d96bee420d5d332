"""Encoders beside what chats: they stay as long as they are asked, their memory is planned for, and
a server that stops waits for who is being answered.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from flm.core.sizes import MIB
from flm.engine.beside import Beside
from flm.engine.plan import (
    PASS_BYTES,
    PREPACKED,
    Carried,
    MemoryPlan,
    beside_bytes,
    estimate,
    plan_memory,
)
from flm.engine.residency import Resident
from flm.errors import NoRoom, PassCancelled
from flm.models.cards import encoders, find
from flm.server.residence.residence import Residence
from flm.server.routes import embeddings as module
from flm.settings import Settings
from tests.server.encoder import MODEL, with_encoder
from tests.server.house import House, in_process

BODY = {"model": MODEL, "input": "what"}


@pytest.fixture
def shelf(tmp_path: Path) -> Settings:
    return with_encoder(tmp_path / "flm")


class Held:
    """Holds every embedding between two passes, from `begun` until it is let go or cut off."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self._go = threading.Event(), threading.Event()
        self.let_go = self._go.set
        embedded = module._embedded

        def held(body: Any, given: Any, embedder: Any, wanted: Callable[[], bool]) -> Any:
            self.begun.set()
            while not self._go.wait(0.001):
                if not wanted():
                    raise PassCancelled("nobody wants it", fix="none needed")
            return embedded(body, given, embedder, wanted)

        monkeypatch.setattr(module, "_embedded", held)


def test_who_is_answered_when_the_server_stops_gets_it(
    house: House, shelf: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, residence = Held(monkeypatch), Residence()
    residence.settle(house.resident)

    async def scene() -> tuple[int, bool, httpx.Response, httpx.Response]:
        async with in_process(replace(house, residence=residence), shelf) as client:
            asking = asyncio.create_task(client.post("/v1/embeddings", json=BODY))
            await asyncio.to_thread(held.begun.wait)
            running = residence.stop()
            emptied = asyncio.create_task(residence.emptied())
            late = await client.post("/v1/embeddings", json=BODY)
            before = emptied.done()
            held.let_go()
            answer = await asking
            await emptied
            return running, before, late, answer

    running, before, late, answer = asyncio.run(scene())
    assert (running, before) == (1, False)
    assert late.json()["error"]["code"] == "server_stopping"
    assert len(answer.json()["data"][0]["embedding"]) == 32


def test_who_does_not_end_in_time_is_told_why_it_was_cut_off(
    house: House, shelf: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, residence = Held(monkeypatch), Residence()
    residence.settle(house.resident)

    async def scene() -> httpx.Response:
        async with in_process(replace(house, residence=residence), shelf) as client:
            asking = asyncio.create_task(client.post("/v1/embeddings", json=BODY))
            await asyncio.to_thread(held.begun.wait)
            residence.stop()
            residence.cut()
            answer = await asking
            await residence.emptied()
            return answer

    answer = asyncio.run(scene())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_stopping")


async def loaded(client: httpx.AsyncClient) -> list[str]:
    models = (await client.get("/api/ps")).json()["models"]
    return [each["name"] for each in models if each["name"] != "tiny:1m"]


async def settled(client: httpx.AsyncClient) -> list[str]:
    """After what the loop is to do at once."""
    for _ in range(20):
        await asyncio.sleep(0)
    return await loaded(client)


@pytest.mark.parametrize(
    ("usual_s", "said", "stays"),
    [
        (0.0, {}, False),
        (0.0, {"keep_alive": -1}, True),
        (None, {}, True),
        (None, {"keep_alive": 0}, False),
        (3600.0, {}, True),
    ],
)
def test_it_stays_as_long_as_is_said(
    house: House, shelf: Settings, usual_s: float | None, said: dict[str, Any], stays: bool
) -> None:
    async def scene() -> list[str]:
        async with in_process(house, replace(shelf, keep_alive=usual_s)) as client:
            for _ in range(2):  # it comes again
                assert (await client.post("/v1/embeddings", json=BODY | said)).status_code == 200
            return await settled(client)

    assert asyncio.run(scene()) == ([MODEL] if stays else [])
    assert set(house.residence.promised.encoders) == ({MODEL} if stays else set())


def test_it_does_not_go_while_it_is_used(
    house: House, shelf: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> tuple[list[str], list[str]]:
        async with in_process(house, replace(shelf, keep_alive=0.0)) as client:
            held = Held(monkeypatch)
            asking = asyncio.create_task(client.post("/v1/embeddings", json=BODY))
            await asyncio.to_thread(held.begun.wait)
            assert not house.residence.promised.let_go()
            during = await settled(client)
            held.let_go()
            await asking
            return during, await settled(client)

    assert asyncio.run(scene()) == ([MODEL], [])


def test_what_it_takes_is_promised_and_told(house: House, shelf: Settings) -> None:
    async def scene() -> dict[str, Any]:
        async with in_process(house, shelf) as client:
            await client.post("/v1/embeddings", json=BODY)
            *_, told = (await client.get("/api/ps")).json()["models"]
            assert isinstance(told, dict)
            return told

    told = asyncio.run(scene())
    assert told["name"] == MODEL
    assert told["size"] == house.residence.promised.encoders[MODEL] > PASS_BYTES


def a_plan(beside: int, prefix_mb: int = 4096) -> MemoryPlan:
    return plan_memory(
        {"float32": Carried(1024, 0)},
        file_bytes=100 * MIB,
        context_length=1024,
        lanes=1,
        kv_dtype="f32",
        prefix_bytes=prefix_mb * MIB,
        parked_bytes=0,
        machine_bytes=2048 * MIB,
        beside_bytes=beside,
    )


def test_a_plan_has_room_for_what_is_loaded_beside_it() -> None:
    """What gives way does; a machine's memory is never promised twice."""
    alone, beside = a_plan(0), a_plan(257 * MIB)
    assert alone.total == beside.total == alone.machine - alone.machine // 16
    assert alone.prefix - beside.prefix == 257 * MIB
    assert any("257 MiB" in line for line in beside.lines())


def test_a_list_says_what_an_encoder_takes_and_what_it_leaves() -> None:
    card, machine = encoders()[0], 64 * 2**30
    own = estimate(card, Settings(), machine)
    assert own.total == round(PREPACKED * card.compiled_bytes) + PASS_BYTES
    assert own.total == pytest.approx(257 * MIB, rel=0.01)
    chats = find("smollm2:135m")
    without, plan = (estimate(chats, Settings(embed=on), machine) for on in (False, True))
    assert plan.needed - without.needed == own.total
    assert beside_bytes(Settings(embed=True), {card.tag: 7}) == 7, "not twice"


def test_an_encoder_that_nobody_uses_gives_way_to_a_model_that_does_not_fit(
    house: House, shelf: Settings
) -> None:
    """And none does to one that fits beside it."""
    needs = {"small": 0, "large": 1}
    tried: list[tuple[str, int]] = []
    beside = Beside()

    def prepare(text: str) -> Callable[[], Resident]:
        tried.append((text, len(beside.encoders)))
        if needs[text] and beside.encoders:
            raise NoRoom("too large", fix="none")
        return lambda: house.resident

    async def scene() -> None:
        residence = Residence(shelf, prepare, beside)
        residence.open_empty()
        async with in_process(replace(house, residence=residence), shelf) as client:
            assert (await client.post("/v1/embeddings", json=BODY)).status_code == 200
            residence._ready("small")
            assert MODEL in residence.promised.encoders
            residence._ready("large")
            assert await loaded(client) == []

    asyncio.run(scene())
    assert tried == [("small", 1), ("large", 1), ("large", 0)]


def test_an_encoder_that_came_after_a_model_was_planned_gives_way_too(
    house: House, shelf: Settings
) -> None:
    beside = Beside()

    def load() -> Resident:
        if beside.encoders:
            raise NoRoom("too large", fix="none")
        return house.resident

    async def scene() -> None:
        residence = Residence(shelf, lambda text: load, beside)
        residence.open_empty()
        async with in_process(replace(house, residence=residence), shelf) as client:
            assert (await client.post("/v1/embeddings", json=BODY)).status_code == 200
            assert residence._loaded(load) is house.resident
            assert await loaded(client) == []

    asyncio.run(scene())

"""Who listens to /v1/events hears what happens in its own domain, in order, and holds nobody up."""

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from flm.core.prompt import BoundaryKind
from flm.prefix.moves import Move, Moved
from flm.server.residence.residence import Residence
from flm.server.routes import news as module
from flm.server.routes.news import News
from tests.server.house import House, open_house, serving
from tests.server.test_leaving import until
from tests.server.test_prefix_cache import KEYS, Client, clock
from tests.server.test_serve import free_port, said, start


class Ear:
    """One that listens."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def hear(self) -> tuple[str, dict[str, Any]]:
        """The next of what happens."""
        for line in self._lines:
            if line.startswith("event: "):
                told = next(self._lines)
                return line.removeprefix("event: "), json.loads(told.removeprefix("data: "))
        raise AssertionError("it ended")

    def until(self, what: str) -> list[tuple[str, dict[str, Any]]]:
        heard = [self.hear()]
        while heard[-1][0] != what:
            heard.append(self.hear())
        return heard


@contextmanager
def listening(url: str, query: str = "", key: str = "one") -> Iterator[Ear]:
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.stream("GET", f"{url}/v1/events{query}", headers=headers, timeout=20) as response:
        assert response.status_code == 200, response.read()
        ear = Ear(response)
        next(ear._lines)  # it is heard of from here on
        yield ear


def test_a_request_is_told_from_its_arrival_to_its_end(house: House) -> None:
    client = Client(house.url)
    client.chat(user="one")
    with listening(house.url) as ear:
        cached = client.chat(user="two")
        heard = ear.until("ended")
    asked, admitted, ended = (
        next(fields for what, fields in heard if what == name)
        for name in ("asked", "admitted", "ended")
    )
    assert [what for what, _ in heard if what in ("asked", "admitted", "ended")] == [
        "asked",
        "admitted",
        "ended",
    ]
    assert asked["id"] == admitted["id"] == ended["id"] == house.requests[-1].id
    assert asked["prompt_tokens"] == ended["prompt_tokens"] == len(house.requests[-1].prompt.tokens)
    assert admitted["cached_tokens"] == ended["cached_tokens"] == cached > 0
    assert (ended["status"], ended["ending"], ended["tier"]) == (200, "length", "lane")
    assert ended["first_s"] >= ended["read_s"] > 0


def test_what_is_kept_is_told_with_what_all_of_it_takes(house: House) -> None:
    client = Client(house.url)
    with listening(house.url) as ear:
        client.chat()
        kept = [fields for what, fields in ear.until("ended") if what == "kept"]
    shown = client.show()
    assert [each["offset"] for each in kept] == sorted(s["end"] for s in shown["tree"] if s["kind"])
    assert kept[-1]["bytes_kept"] == shown["totals"]["bytes_kept"] > 0


def test_an_eviction_is_told_as_it_happens(tmp_path: Path) -> None:
    with (
        open_house(tmp_path, cache_bytes=2**14) as house,
        serving(house.residence) as url,
        listening(url) as ear,
    ):
        client, gone = Client(url), []
        for turn in range(8):
            client.chat(system=f"{turn} " + "Rules of another house. " * 12)
            gone += [what for what, _ in ear.until("ended") if what in ("evicted", "outgrown")]
    assert "evicted" in gone


def test_what_is_cleared_is_told_as_forgotten(house: House) -> None:
    client = Client(house.url)
    client.chat()
    with listening(house.url) as ear:
        client.post("/v1/prefix-cache/clear")
        what, fields = ear.hear()
    assert (what, fields["model"]) == ("forgotten", "tiny:1m")


def test_a_miss_is_explained_and_its_text_is_for_who_asks(house: House) -> None:
    client = Client(house.url)
    client.chat(system=clock(5))
    with listening(house.url) as plain, listening(house.url, "?text=1") as curious:
        client.chat(system=clock(6))
        (*_, (_, told)), (*_, (_, more)) = plain.until("explained"), curious.until("explained")
    assert told["class"] == "time"
    assert told["place"]["path"] == "messages[0].content"
    assert "last user message" in told["advice"]
    assert more == told | {name: more[name] for name in ("before", "ours", "theirs")}
    assert (more["ours"][:2], more["theirs"][:2]) == ("6:", "5:")
    assert "12:0" not in json.dumps(told)


@pytest.mark.parametrize("query", ["", "?text=1"])
def test_nobody_hears_of_another_domain(house: House, query: str) -> None:
    with (
        serving(house.residence, KEYS) as url,
        listening(url, query, key="two") as other,
        listening(url, f"?cache_salt=salt{query.replace('?', '&')}") as salted,
    ):
        Client(url, "one").chat()
        Client(url, "two").chat(user="mine")
        Client(url, "one").chat(user="salted", cache_salt="salt")
        for ear, number in ((other, 1), (salted, 2)):
            heard = ear.until("ended")
            assert {fields.get("id") for _, fields in heard} - {None} == {house.requests[number].id}


def test_shared_domains_are_heard_by_every_key(house: House) -> None:
    shared = replace(KEYS, prefix_shared=True)
    with serving(house.residence, shared) as url, listening(url, key="two") as ear:
        Client(url, "one").chat()
        assert ear.hear()[0] == "asked"


def test_it_asks_for_the_key(house: House) -> None:
    with serving(house.residence, KEYS) as url:
        assert httpx.get(f"{url}/v1/events").status_code == 401


def test_who_listens_may_come_before_the_model(tmp_path: Path) -> None:
    residence = Residence()
    with serving(residence) as url, listening(url) as ear, open_house(tmp_path) as house:
        residence.settle(house.resident)
        Client(url).chat()
        assert "kept" in {what for what, _ in ear.until("ended")}


def test_one_that_does_not_read_is_let_go(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for it is bounded, and the others hear on."""
    monkeypatch.setattr(module, "NEWS_BEHIND_MAX", 3)
    told = News()

    async def listen() -> tuple[bytes, bytes]:
        slow, quick = module.Listener("", text=False), module.Listener("", text=False)
        with told.heard(slow), told.heard(quick):
            heard = b""
            for number in range(4):
                told.tell("", "asked", {"id": str(number)})
                heard += await quick.pieces(5)
            assert (slow.over, quick.over) == (True, False)
            return heard, await slow.pieces(5)

    heard, nothing = asyncio.run(listen())
    assert heard.count(b"event: asked") == 4
    assert nothing == b""


def test_too_many_who_listen_are_turned_away(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LISTENERS_MAX", 1)
    with serving(house.residence) as url:
        with listening(url):
            refused = httpx.get(f"{url}/v1/events")
            assert refused.status_code == 429
            assert refused.json()["error"]["fix"]

        def admitted() -> bool:
            with httpx.stream("GET", f"{url}/v1/events") as response:
                return response.status_code == 200

        until(admitted)


def test_one_that_leaves_is_not_told_any_more(house: House) -> None:
    told = News()
    told.follow(house.resident)
    watch = house.resident.thread.ask(lambda engine: engine.cache.watch).result()
    assert watch
    watch(Move("", Moved.KEPT, BoundaryKind.HEAD, 1, 1))  # nobody listens: no harm
    assert not told._listeners


def test_a_server_that_stops_does_not_wait_for_who_listens(tmp_path: Path) -> None:
    port = free_port()
    with start(tmp_path, port, "quick") as process:
        said(process, "ready")
        with listening(f"http://127.0.0.1:{port}") as ear:
            process.send_signal(signal.SIGTERM)
            assert not [line for line in ear._lines if line.startswith("event")]  # to a clean end
        said(process, "ended")
        assert process.wait(timeout=30) == 0

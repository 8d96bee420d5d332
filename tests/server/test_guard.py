"""Who may come in: the Host and Origin rules, keys, and room for only so many."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from flm.server.guard import Guard, host_name
from flm.settings import Settings
from tests.server.house import SETTINGS, House, in_process

FOREIGN = "https://evil.example"


def visit(
    house: House,
    headers: dict[str, str],
    *,
    method: str = "GET",
    path: str = "/v1/models",
    **settings: Any,
) -> httpx.Response:
    async def send() -> httpx.Response:
        async with in_process(house, replace(SETTINGS, **settings)) as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(send())


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:52625",
        "LOCALHOST.",
        "127.0.0.1:1",
        "[::1]:52625",
        "app.localhost",
        "nas.local",
        "host.docker.internal:52625",
        "host.containers.internal",
        "flm",
        "192.168.1.5:52625",
        "10.0.0.7",
        "100.64.1.2",
        "[fe80::1]",
        "mine.example",
    ],
)
def test_names_that_only_this_network_can_give_us_are_known(house: House, host: str) -> None:
    assert visit(house, {"host": host}, allowed_hosts=("mine.example",)).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:52625",
        "8.8.8.8",
        "[2001:4860:4860::8888]",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "internal",  # known: no dot
        "",
        "a@evil.example",
    ],
)
def test_names_that_anyone_can_point_at_us_are_not(house: House, host: str) -> None:
    """DNS rebinding: a page of evil.example whose name now leads here."""
    response = visit(house, {"host": host})
    if host == "internal":
        assert response.status_code == 200
        return
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "host_not_allowed"
    assert "--allowed-hosts" in response.json()["error"]["fix"]


def test_the_host_is_checked_before_origins_are_answered(house: House) -> None:
    headers = {"host": "evil.example", "origin": "http://localhost:3000"}
    assert visit(house, headers, method="OPTIONS").status_code == 403


@pytest.mark.parametrize(
    ("host", "name"), [("[::1]:80", "::1"), ("A.b.:80", "a.b"), ("a", "a"), ("", "")]
)
def test_a_host_header_gives_its_name(host: str, name: str) -> None:
    assert host_name(host) == name


ALLOWED = [
    "http://localhost:3000",
    "http://127.0.0.1:8080",
    "https://app.localhost",
    "app://obsidian.md",
    "file://",
    "tauri://localhost",
    "vscode-webview://abc",
    "chrome-extension://abc",
    "moz-extension://abc",
    "http://192.168.1.5:52625",  # our own, as the Host header says
    "https://chat.example",  # --cors-origins
]


@pytest.mark.parametrize("origin", ALLOWED)
def test_local_pages_and_desktop_apps_may_call(house: House, origin: str) -> None:
    headers = {
        "origin": origin,
        "host": "192.168.1.5:52625",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-stainless-os",
        "access-control-request-private-network": "true",
    }
    settings: dict[str, Any] = {"cors_origins": ("https://chat.example",), "api_keys": ("key",)}
    preflight = visit(house, headers, method="OPTIONS", path="/v1/chat/completions", **settings)
    assert preflight.status_code == 204
    assert preflight.content == b""
    assert preflight.headers["access-control-allow-origin"] == origin
    assert preflight.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
    assert preflight.headers["access-control-allow-private-network"] == "true"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in preflight.headers
    settings["api_keys"] = ()
    assert visit(house, headers, **settings).headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize(
    "origin", [FOREIGN, "null", "http://localhost.evil.example", "x", "http://["]
)
@pytest.mark.parametrize("method", ["OPTIONS", "POST", "GET"])
def test_other_pages_may_not_and_learn_how(house: House, origin: str, method: str) -> None:
    """A page may send a plain POST without asking first, so it is refused, not just not shared."""
    response = visit(house, {"origin": origin}, method=method)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "origin_not_allowed"
    assert "--cors-origins" in response.json()["error"]["message"]
    assert "access-control-allow-origin" not in response.headers


def test_a_star_admits_every_page(house: House) -> None:
    response = visit(house, {"origin": FOREIGN}, cors_origins=("*",))
    assert response.headers["access-control-allow-origin"] == FOREIGN
    assert response.headers["vary"] == "Origin"


def test_without_cors_no_page_is_told_anything(house: House) -> None:
    headers = {"origin": "http://localhost:3000"}
    response = visit(house, headers, cors=False)
    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers
    assert visit(house, headers, method="OPTIONS", cors=False).status_code == 405


def test_refusals_can_be_read_by_pages_that_may_call(house: House) -> None:
    headers = {"origin": "http://localhost:3000"}
    response = visit(house, headers, api_keys=("key",))
    assert response.status_code == 401
    assert response.headers["access-control-allow-origin"] == "http://localhost:3000"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer one"},
        {"authorization": "bearer two"},
        {"x-api-key": "two"},
        {"authorization": "Bearer wrong", "x-api-key": "one"},
        {"x-api-key": "schlüssel".encode()},
    ],
)
def test_any_configured_key_opens(house: House, headers: dict[str, Any]) -> None:
    assert visit(house, headers, api_keys=("one", "two", "schlüssel")).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer "},
        {"authorization": "Bearer three"},
        {"authorization": "Basic one"},
        {"x-api-key": ""},
    ],
)
def test_without_a_key_nothing_but_health_answers(house: House, headers: dict[str, str]) -> None:
    response = visit(house, headers, api_keys=("one",))
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"
    assert visit(house, headers, path="/health", api_keys=("one",)).status_code == 200


def test_with_no_key_configured_any_is_ignored(house: House) -> None:
    assert visit(house, {"authorization": "Bearer no-key-required"}).status_code == 200


def test_more_requests_than_connections_max_are_turned_away() -> None:
    """And the room is given back, also by a request that failed."""
    holding = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await holding.wait()
        raise ConnectionError

    async def visit_all() -> list[int]:
        guard = Guard(app, Settings(connections_max=2))
        scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
        sent: list[int] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                sent.append(message["status"])

        async def call() -> None:
            await guard(dict(scope), None, send)  # type: ignore[arg-type]

        inside = [asyncio.create_task(call()) for _ in range(2)]
        await asyncio.sleep(0)
        await call()
        holding.set()
        await asyncio.gather(*inside, return_exceptions=True)
        assert guard.open_requests == 0
        return sent

    assert asyncio.run(visit_all()) == [429]


@pytest.mark.parametrize("begun", [False, True])
def test_who_has_no_answer_as_the_server_ends_is_told_why(begun: bool) -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async def scene() -> None:
        scope = {"type": "http", "method": "POST", "path": "/v1/embeddings", "headers": []}
        call = Guard(app, Settings())(scope, None, send)  # type: ignore[arg-type]
        task = asyncio.create_task(call)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()  # as uvicorn does
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(scene())
    assert [each["status"] for each in sent if "status" in each] == [200 if begun else 503]
    assert begun or b"server_stopping" in sent[-1]["body"]

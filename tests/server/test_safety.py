"""Safe by default: what a server that nobody configured lets in, takes on, and keeps to itself.

Hosts, origins and keys are in test_guard, bodies in test_wire, slow clients in test_patience,
templates in pure/test_text_sandbox.
"""

import asyncio
import hmac
import json
import re
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from flm import console
from flm.errors import BadModelFile
from flm.server import guard
from flm.server.app import create_app
from flm.server.patience import HEAD_BYTES_MAX
from flm.server.serve import listen, run_server
from flm.settings import Settings
from flm.text import sandbox
from tests.server.asking import HELLO, post, refused
from tests.server.house import SETTINGS, House, in_process, open_house
from tests.server.test_guard import visit
from tests.server.test_leaving import answers
from tests.server.test_serve import free_port

SECRET = "xyzzy"
ROUTE = re.compile(r"@(?:router|app)\.([a-z]+)\(\s*\"(/[^\"]*)\"")
FILES = {("/page/{name}", "get")}


def test_without_settings_only_this_machine_is_listened_to() -> None:
    with listen(Settings().host, 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "keys", "warned"),
    [("127.0.0.1", (), False), ("0.0.0.0", (), True), ("0.0.0.0", ("one", "two"), False)],
)
def test_who_listens_to_others_has_a_key_or_is_warned(
    capsys: pytest.CaptureFixture[str], host: str, keys: tuple[str, ...], warned: bool
) -> None:
    def load() -> Any:
        raise BadModelFile("it is torn")

    with pytest.raises(BadModelFile):
        run_server(Settings(host=host, port=free_port(), api_keys=keys), ("tiny", load))
    assert ("--api-key" in capsys.readouterr().err) == warned


def test_how_long_a_key_is_looked_at_tells_nothing_of_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every key is compared whole, however early another matched."""
    compared: list[bytes] = []
    whole = hmac.compare_digest

    def compare(ours: bytes, given: bytes) -> bool:
        compared.append(ours)
        return whole(ours, given)

    monkeypatch.setattr(guard.hmac, "compare_digest", compare)
    for key in ("one", "two", "wrong", ""):
        compared.clear()
        visit(house, {"authorization": f"Bearer {key}"}, api_keys=("one", "two"))
        assert sorted(set(compared)) == [b"one", b"two"]
        assert len(compared) == 4


def send_raw(house: House, head: bytes) -> bytes:
    host, port = house.url.removeprefix("http://").split(":")
    said = b""
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head)
        try:
            while piece := connection.recv(65536):
                said += piece
        except ConnectionResetError:  # it was closed with some of the head unread
            pass
    return said


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * HEAD_BYTES_MAX,
        b"GET /" + b"x" * HEAD_BYTES_MAX,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
    ids=["a long header", "many headers", "a long path", "TLS", "negative", "two lengths"],
)
def test_what_is_no_request_is_told_as_json_and_closed(house: House, head: bytes) -> None:
    said = send_raw(house, head)
    if said:
        assert said.startswith(b"HTTP/1.1 400 ")
        assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["fix"]
    answers(house)


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
def test_too_many_tools_are_counted_before_they_are_looked_at(house: House, path: str) -> None:
    body = {"model": "tiny:1m", "messages": HELLO, "input": "a", "max_tokens": 1}
    body["tools"] = [1] * (SETTINGS.tools_max + 1)

    async def send() -> httpx.Response:
        async with in_process(house) as client:
            return await client.post(f"/v1/{path}", json=body)

    response = asyncio.run(send())
    assert response.status_code == 400
    assert "4,097 entries" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/a.png",
        "https://example.com/a.png",
        "file:///etc/passwd",
    ],
)
def test_no_address_in_a_request_is_ever_fetched(
    house: House, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    def connected(*args: object) -> None:
        raise AssertionError("a connection was made")

    for way in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, way, connected)
    monkeypatch.setattr("builtins.open", connected)
    picture = {"type": "image_url", "image_url": {"url": url}}
    error = refused(house, messages=[{"role": "user", "content": [picture]}])
    assert "image" in error["message"]


def test_a_template_without_end_fails_its_request_alone(
    house: House, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "RENDER_S_MAX", 0.05)
    endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
    with open_house(tmp_path_factory.mktemp("endless"), template=endless) as other:
        response = post(other)
        assert response.status_code == 400
        assert "ran for more than" in response.json()["error"]["message"]
        assert other.resident.thread.idle
    answers(house)


@pytest.mark.parametrize("level", ["info", "debug"])
def test_no_word_of_a_prompt_is_in_the_log(
    house: House, capsys: pytest.CaptureFixture[str], level: str
) -> None:
    """Whatever becomes of the request."""
    said = [
        {"role": "system", "content": f"{SECRET} " * 20},
        {"role": "user", "content": [{"type": "text", "text": SECRET}]},
        {"role": "assistant", "content": SECRET, "tool_calls": [call(SECRET)]},
        {"role": "tool", "content": SECRET, "name": SECRET, "tool_call_id": SECRET},
    ]
    tool = {"type": "function", "function": {"name": SECRET, "description": SECRET}}
    console.configure(level=level)
    try:
        house.say(SECRET, SECRET, SECRET)
        for changed in ("one", "two", "three"):
            content = [{"role": "user", "content": f"{changed} {SECRET}"}]
            post(house, messages=[*content, *said], tools=[tool], stop=[SECRET], user=SECRET)
        for wrong in (
            {"messages": SECRET},
            {"messages": [{"role": SECRET}]},
            {"messages": [{"role": "user", "content": SECRET * 100_000}]},
            {"messages": said, "temperature": SECRET},
            {"messages": said, "tools": [{"type": "function", "function": SECRET}]},
            {"model": SECRET},
        ):
            assert post(house, **wrong).status_code in (400, 404)
    finally:
        console.configure()
    out, err = capsys.readouterr()
    assert "POST /v1/chat/completions" in out
    assert SECRET not in out + err


def call(word: str) -> dict[str, Any]:
    arguments = json.dumps({word: word})
    return {"id": word, "type": "function", "function": {"name": word, "arguments": arguments}}


def test_the_fuzzer_knows_every_route(house: House) -> None:
    """All that is in openapi.json, which has all but HEAD and the page's files."""
    paths = create_app(SETTINGS, house.residence).openapi()["paths"]
    known = {(path, method) for path, methods in paths.items() for method in methods}
    written = [
        ROUTE.findall(file.read_text()) for file in Path(guard.__file__).parent.rglob("*.py")
    ]
    routes = {(path.replace(":path", ""), way) for found in written for way, path in found}
    assert known == {(path, way) for path, way in routes - FILES if way != "head"}

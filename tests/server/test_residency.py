"""One model at a time, and requests for others take turns."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from flm.errors import BadModelFile, NoRoom
from flm.server.residence import residence as residence_module
from flm.server.residence import shelf as shelf_module
from flm.server.residence.shelf import Shelved
from flm.settings import Settings
from tests.server.street import CHAT, Street, opened
from tests.server.test_leaving import HELLO, Gate, caller, until


@pytest.fixture
def street(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Street]:
    monkeypatch.setattr(residence_module, "STAY_S_MIN", 0.0)
    with opened(tmp_path) as street:
        yield street


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def model_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    name: str = response.json()["model"]
    return name


def test_a_request_that_names_another_model_has_it_loaded(street: Street) -> None:
    for name in ("ant", "bee", "bee", "ant"):
        assert model_of(street.ask(name)) == name
    assert street.loads == ["ant", "bee", "ant"]
    assert street.closed == ["ant", "bee"]


def test_every_api_waits_for_its_model_alike(street: Street) -> None:
    messages = {"messages": HELLO, "max_tokens": 2}
    for path, body in {
        "/v1/completions": {"model": "ant", "prompt": "a", "max_tokens": 2},
        "/v1/messages": {"model": "bee", **messages},
        "/v1/messages/count_tokens": {"model": "cow", **messages},
        "/v1/prefix-cache/explain": {"model": "ant", **messages},
        "/v1/prefix-cache/warm": {"model": "bee", **messages},
        "/tokenize": {"model": "cow", "content": "a"},
        "/apply-template": {"model": "ant", **messages},
        "/v1/responses": {"model": "bee", "input": "a"},
        "/api/chat": {"model": "cow", **messages},
        "/api/generate": {"model": "ant"},
    }.items():
        response = httpx.post(street.url + path, json=body, timeout=20)
        assert response.status_code in (200, 202), response.text
    assert street.loads == ["ant", "bee", "cow", "ant", "bee", "cow", "ant", "bee", "cow", "ant"]


def test_a_request_that_is_wrong_loads_nothing(street: Street) -> None:
    assert street.ask("ant", temperature=9).status_code == 400
    assert street.ask("ant@robot").status_code == 400
    assert street.ask("dog").status_code == 404
    assert street.loads == []


def test_what_is_known_and_not_installed_is_named_with_how_to_get_it(street: Street) -> None:
    response = street.ask("smollm2:135m")
    assert response.status_code == 404
    assert response.json()["error"]["fix"] == "flm pull smollm2:135m"
    assert street.loads == []


@pytest.mark.parametrize("name", ["/etc/passwd", "./ant.gguf", "hf:a/b/c.gguf", "x" * 100_000])
def test_a_name_is_never_a_path_nor_an_address(street: Street, name: str) -> None:
    assert street.ask(name).status_code == 404
    assert street.loads == []


def test_models_lists_what_is_loaded_first_and_what_else_may_be_asked(street: Street) -> None:
    street.ask("bee")
    data = httpx.get(street.url + "/v1/models").json()["data"]
    assert [(each["id"], each["loaded"]) for each in data] == [
        ("bee", True),
        ("ant", False),
        ("cow", False),
    ]
    assert data[0]["context_length"] == data[0]["max_model_len"] == 512
    assert data[1]["context_length"] == data[1]["max_model_len"] == 8192
    for each in data:
        assert httpx.get(f"{street.url}/v1/models/{each['id']}").json() == each
    assert httpx.get(f"{street.url}/v1/models/dog").status_code == 404
    tags = httpx.get(street.url + "/api/tags").json()["models"]
    assert [each["name"] for each in tags] == ["bee", "ant", "cow"]
    (running,) = httpx.get(street.url + "/api/ps").json()["models"]
    assert (running["name"], running["expires_at"][:4]) == ("bee", "9999")
    shown = httpx.post(street.url + "/api/show", json={"model": "ant"}).json()
    assert "num_ctx 8192" in shown["parameters"]
    assert street.loads == ["bee"]


def test_running_requests_end_before_their_model_goes(
    street: Street, pool: ThreadPoolExecutor
) -> None:
    gate = Gate()
    street.on_open = lambda house: house.during_passes(gate)
    first = pool.submit(street.ask, "ant")
    assert gate.reached.wait(10)
    second = pool.submit(street.ask, "bee")
    until(lambda: street.residence.waiting == 1)
    assert street.closed == []
    gate.open()
    assert model_of(first.result()) == "ant"
    assert model_of(second.result()) == "bee"


def test_who_comes_while_another_model_is_awaited_has_a_later_turn(
    street: Street, pool: ThreadPoolExecutor
) -> None:
    """So no model waits for ever, and each load serves all who wait for it."""
    gate = Gate()
    street.on_open = lambda house: house.during_passes(gate)
    asked: list[Future[httpx.Response]] = [pool.submit(street.ask, "ant")]
    assert gate.reached.wait(10)
    for waiting, name in enumerate(("bee", "ant", "bee", "ant")):
        asked.append(pool.submit(street.ask, name))
        until(lambda waiting=waiting: street.residence.waiting == waiting + 1)  # type: ignore[misc]
        until(lambda: street.residence.is_anothers_turn)  # once bee is ready to be loaded
    gate.open()
    assert [model_of(each.result()) for each in asked] == ["ant", "bee", "ant", "bee", "ant"]
    assert street.loads == ["ant", "bee", "ant"]


def test_a_model_stays_its_time_so_that_two_do_not_only_take_turns_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    monkeypatch.setattr(residence_module, "STAY_S_MIN", 3600.0)
    monkeypatch.setattr(residence_module, "STAY_S_MAX", 3600.0)
    with opened(tmp_path) as street:
        assert model_of(street.ask("ant")) == "ant"
        other = pool.submit(street.ask, "bee")
        until(lambda: street.residence.waiting == 1)
        for _ in range(3):
            assert model_of(street.ask("ant")) == "ant"
        assert street.loads == ["ant"]
        assert not other.done()
        street.residence._stays_until = 0.0  # its time is over
        assert model_of(street.ask("bee")) == "bee"
        assert model_of(other.result()) == "bee"


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (NoRoom("too large", fix="take a smaller one"), 507, "no_room"),
        (BadModelFile("it is torn"), 500, "bad_model_file"),
        (RuntimeError("of ours"), 500, None),
    ],
)
def test_what_cannot_be_loaded_fails_its_request_alone(
    street: Street, pool: ThreadPoolExecutor, fault: Exception, status: int, code: str | None
) -> None:
    """Found while it is made ready, it does not even disturb what is loaded."""
    street.ask("ant")
    street.faults["bee"] = fault
    response = street.ask("bee", stream=True)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert model_of(street.ask("ant")) == "ant"
    assert street.loads == ["ant"]


def test_after_a_load_that_failed_the_one_before_comes_back_when_asked(street: Street) -> None:
    street.ask("ant")
    street.late_faults["bee"] = BadModelFile("it is torn")
    assert street.ask("bee").status_code == 500
    assert httpx.get(street.url + "/health").json() == {"status": "ok", "model": None}
    assert httpx.get(street.url + "/v1/prefix-cache").status_code == 409
    assert httpx.get(street.url + "/metrics").status_code == 200
    assert httpx.get(street.url + "/api/ps").json() == {"models": []}
    assert httpx.get(street.url + "/api/npu/status").json()["npu_available"]
    assert model_of(street.ask("ant")) == "ant"
    assert street.loads == ["ant", "ant"]


def test_a_stream_that_waits_for_its_model_is_pinged_and_then_goes_on(
    street: Street, pool: ThreadPoolExecutor
) -> None:
    gate = Gate()
    street.before_load = lambda name: gate()
    street.on_open = lambda house: house.say("at last")
    with caller(street.url, model="bee", stream=True) as connection:
        said = b""
        while said.count(b": ping") < 3:
            said += connection.recv(65536)
        gate.open()
        while b"[DONE]" not in said:
            said += connection.recv(65536)
    assert said.startswith(b"HTTP/1.1 200 ")
    assert said.count(b"HTTP/1.1") == 1
    chunks = [json.loads(line[6:]) for line in said.split(b"\n") if line.startswith(b"data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == "at last"
    assert b'"finish_reason":"stop"' in said


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_a_load_that_fails_late_is_told_inside_the_stream(street: Street, path: str) -> None:
    gate = Gate()
    street.before_load = lambda name: gate()
    street.late_faults["bee"] = BadModelFile("it is torn")
    body = {"model": "bee", "messages": HELLO, "max_tokens": 2, "stream": True}
    with httpx.stream("POST", street.url + path, json=body, timeout=20) as response:
        lines = response.iter_lines()
        assert response.status_code == 200
        assert next(lines) == ": ping"
        gate.open()
        told = [line for line in lines if line.startswith(("data", "event"))]
    assert "it is torn" in json.loads(told[-1].removeprefix("data: "))["error"]["message"]
    assert (told[0] == "event: error") == (path == "/v1/messages")


@pytest.mark.parametrize("streamed", [True, False])
def test_who_leaves_while_waiting_for_a_model_is_waited_for_by_none(
    street: Street, streamed: bool
) -> None:
    gate = Gate()
    street.on_open = lambda house: house.during_passes(gate)
    with caller(street.url, model="ant") as running:
        assert gate.reached.wait(10)
        with caller(street.url, model="bee", stream=streamed):
            until(lambda: street.residence.waiting == 1)
        until(lambda: street.residence.waiting == 0)
        gate.open()
        assert b" 200 " in running.recv(65536)
    assert model_of(street.ask("ant")) == "ant"
    assert street.loads == ["ant"]


def test_as_many_wait_for_another_model_as_would_for_this_one(
    street: Street, pool: ThreadPoolExecutor
) -> None:
    gate = Gate()
    street.before_load = lambda name: gate()
    room = street.settings.lanes + street.settings.queue_max
    asked = [pool.submit(street.ask, "ant") for _ in range(room)]
    until(lambda: street.residence.waiting == room)
    refusal = street.ask("bee")
    assert refusal.status_code == 429
    assert refusal.headers["retry-after"]
    gate.open()
    assert [model_of(each.result()) for each in asked] == ["ant"] * room


def test_what_nobody_asks_for_a_while_is_unloaded(tmp_path: Path) -> None:
    with opened(tmp_path, keep_alive=0.2) as street:
        street.ask("ant")
        assert street.residence.expires_at is not None
        until(lambda: street.closed == ["ant"])
        assert model_of(street.ask("ant")) == "ant"
        assert street.loads == ["ant", "ant"]


def test_a_request_says_how_long_its_model_stays(street: Street) -> None:
    assert street.ask("ant", keep_alive=-1).status_code == 200
    assert street.residence.expires_at is None
    assert street.ask("ant", keep_alive="1h30m").status_code == 200
    assert street.residence.expires_at is not None
    assert street.closed == []
    assert street.ask("ant", keep_alive=0).status_code == 200
    until(lambda: street.closed == ["ant"])
    assert street.ask("ant", keep_alive="soon").status_code == 400


def test_ollamas_way_to_unload_a_model_is_heard(street: Street) -> None:
    reply = httpx.post(f"{street.url}/api/generate", json={"model": "bee"}, timeout=20).json()
    assert reply["done_reason"] == "load"
    body = {"model": "bee", "keep_alive": 0}
    reply = httpx.post(f"{street.url}/api/generate", json=body, timeout=20).json()
    assert reply["done_reason"] == "unload"
    until(lambda: street.closed == ["bee"])


def test_it_stays_while_it_is_in_use(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with opened(tmp_path, keep_alive=0.0) as street:
        gate, past = Gate(), threading.Event()
        street.on_open = lambda house: house.during_passes(gate)
        running = pool.submit(street.ask, "ant")
        assert gate.reached.wait(10)
        past.wait(0.1)
        assert street.closed == []
        gate.open()
        assert model_of(running.result()) == "ant"
        until(lambda: street.closed == ["ant"])


def test_what_is_loaded_serves_while_another_is_made_ready(
    street: Street, pool: ThreadPoolExecutor
) -> None:
    """Compiling may take minutes."""
    gate = Gate()
    street.ask("ant")
    street.before_prepare = lambda name: gate()
    other = pool.submit(street.ask, "bee")
    assert gate.reached.wait(10)
    assert model_of(street.ask("ant")) == "ant"
    gate.open()
    assert model_of(other.result()) == "bee"
    assert street.loads == ["ant", "bee"]


def test_what_leaves_the_shelf_as_it_is_asked_about_is_told_as_it_stood(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shelf is looked through once for a name: a second look would not find it."""
    looks = []
    shelved = shelf_module.shelved

    def once(settings: Settings) -> list[Shelved]:
        looks.append(1)
        return shelved(settings) if len(looks) == 1 else []

    for module in (shelf_module, residence_module):
        monkeypatch.setattr(module, "shelved", once)
    assert httpx.get(f"{street.url}/v1/models/bee").json()["id"] == "bee"
    looks.clear()
    told = httpx.post(f"{street.url}/api/show", json={"model": "cow"})
    assert told.json()["modelfile"].startswith("FROM cow")

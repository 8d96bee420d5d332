"""However a client goes, and whatever its request is at: no lane is left behind, and nobody else's
request ends.

A bare socket; the device is held in a pass while the client goes.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from flm.core.request import Priority
from flm.server.residence import residence as residence_module
from tests.server.house import SETTINGS, House, open_house, serving
from tests.server.street import opened
from tests.server.test_leaving import Gate, answers, caller, idle, until

RESET = bytes.fromhex("0100000000000000")  # linger: on, 0 s


def close(connection: socket.socket) -> None:
    connection.close()


def half_close(connection: socket.socket) -> None:
    """It sends no more, and would still read: who does so has mostly left, so it counts as that."""
    connection.shutdown(socket.SHUT_WR)


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()


@contextmanager
def queued(house: House, **fields: object) -> Iterator[socket.socket]:
    """Behind as many as there are lanes."""
    passing, engine = threading.Event(), house.resident.thread
    house.during_passes(lambda: (passing.wait(0.01), None)[1])
    with ExitStack() as stack:
        for _ in range(SETTINGS.lanes):
            house.say("theirs ", end=False)
            stack.enter_context(caller(house.url))
        until(lambda: engine.running == SETTINGS.lanes)
        connection = stack.enter_context(caller(house.url, **fields))
        until(lambda: engine.waiting == 1)
        yield connection
        until(lambda: engine.waiting == 0)
        assert engine.running == SETTINGS.lanes, "somebody else's request ended"
    house.during_passes(lambda: None)


@contextmanager
def held(house: House, passes: int, **fields: object) -> Iterator[socket.socket]:
    """In a pass after so many."""
    gate, seen = Gate(), [0]

    def hold() -> None:
        seen[0] += 1
        if seen[0] > passes:
            gate()

    house.during_passes(hold)
    house.say("never heard ", end=False)
    with caller(house.url, **fields) as connection:
        assert gate.reached.wait(10)
        yield connection
        gate.open()
        until(lambda: idle(house))
    house.during_passes(lambda: None)


@contextmanager
def read(house: House, **fields: object) -> Iterator[socket.socket]:
    """While its prompt is read."""
    with held(house, 0, **fields) as connection:
        yield connection


@contextmanager
def written(house: House, **fields: object) -> Iterator[socket.socket]:
    """While its reply is written."""
    with held(house, 5, **fields) as connection:
        yield connection


@contextmanager
def finished(house: House, **fields: object) -> Iterator[socket.socket]:
    """And not a byte of the reply taken."""
    house.say("all of it")
    with caller(house.url, **fields) as connection:
        until(lambda: len(house.requests) == 1 and idle(house))
        yield connection


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("go", [close, half_close, reset])
@pytest.mark.parametrize("state", [queued, read, written, finished])
def test_who_goes_leaves_no_lane_behind(house: House, state, go, streamed: bool) -> None:  # type: ignore[no-untyped-def]
    with state(house, stream=streamed) as connection:
        go(connection)
    until(lambda: idle(house))
    answers(house)
    house.resident.thread.ask(lambda engine: engine.check()).result(10)


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("state", [queued, read, written])
def test_who_sends_no_more_is_hung_up_on_cleanly(house: House, state, streamed: bool) -> None:  # type: ignore[no-untyped-def]
    """What a whole close looks like from here is the same: nobody can be worked for on the chance
    that it was half of one.
    """
    with state(house, stream=streamed) as connection:
        half_close(connection)
        while connection.recv(65536):  # what was sent before, and then the end: no reset
            pass


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("go", [close, half_close, reset])
def test_who_goes_while_parked_leaves_nothing_behind(tmp_path: Path, go, streamed: bool) -> None:  # type: ignore[no-untyped-def]
    settings = replace(SETTINGS, lanes=1)
    with ExitStack() as stack:
        house = stack.enter_context(open_house(tmp_path, settings, parked_bytes=2**20))
        house.url = stack.enter_context(serving(house.residence))
        slow, thread = threading.Event(), house.resident.thread
        house.during_passes(lambda: (slow.wait(0.005), None)[1])
        house.say("never heard ", "a person's ", end=False)
        story = [{"role": "user", "content": "Tell it all. " * 20}]
        with caller(house.url, model="tiny:1m@agent", messages=story, stream=streamed) as agent:
            until(lambda: thread.running == 1)
            person = stack.enter_context(caller(house.url))
            until(lambda: thread.standing["parked", Priority.AGENT] == 1)
            go(agent)
            until(lambda: not thread.standing["parked", Priority.AGENT])
        assert thread.parked.host_bytes == 0
        assert thread.standing["running", Priority.INTERACTIVE] == 1, "somebody else's ended"
        person.close()
        until(lambda: idle(house))
        house.during_passes(lambda: None)
        answers(house)


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("go", [close, half_close, reset])
def test_who_goes_while_its_model_is_waited_for_leaves_nothing_behind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    go,  # type: ignore[no-untyped-def]
    streamed: bool,
) -> None:
    monkeypatch.setattr(residence_module, "STAY_S_MIN", 0.0)
    gate = Gate()
    with opened(tmp_path) as street:
        assert street.ask("ant").status_code == 200
        street.before_prepare = lambda name: gate()
        with caller(street.url, model="bee", stream=streamed) as connection:
            assert gate.reached.wait(10)
            until(lambda: street.residence.waiting == 1)
            go(connection)
            until(lambda: street.residence.waiting == 0)
        gate.open()
        street.before_prepare = lambda name: None
        assert street.ask("ant").json()["model"] == "ant"
        assert street.loads == ["ant"], "nobody waits for it any more"
        thread = street.houses["ant"].resident.thread
        until(lambda: thread.idle and thread.running == 0)


@pytest.mark.parametrize("go", [half_close, reset])
@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/chat", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"]
)
def test_who_goes_before_asking_is_no_matter(house: House, go, sent: bytes) -> None:  # type: ignore[no-untyped-def]
    host, port = house.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(sent)
        go(connection)
        if go is half_close:
            while connection.recv(65536):
                pass
    answers(house)

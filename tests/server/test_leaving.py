"""Clients that leave, and clients that do not read: no lane is left behind in any state.

llama.cpp#24496, #13262, #27604, ik_llama.cpp#1929. A real server on a real socket; the device is
held in the middle of a pass while the client goes.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from flm.server import generate, sse
from tests.server.house import CONTEXT_LENGTH, House, serving

BUFFER_BYTES = 4096  # of a socket, so that little fills it
HELLO = [{"role": "user", "content": "hello"}]


class Gate:
    """Holds the engine in a pass, from `closed` until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self._open.wait(10), "nobody opened the gate"

    def open(self) -> None:
        self._open.set()


@contextmanager
def caller(url: str, **fields: Any) -> Iterator[socket.socket]:
    """A bare connection that has sent its request."""
    body = json.dumps({"model": "tiny:1m", "messages": HELLO, **fields}).encode()
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        connection.settimeout(10)
        connection.connect((host, int(port)))
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        yield connection


def until(condition: Callable[[], bool]) -> None:
    """Poll the server until it is so: what it does has no other end to wait for."""
    done = threading.Event()
    for _ in range(2000):
        if condition():
            return
        done.wait(0.005)
    raise AssertionError("it never came to be")


def idle(house: House) -> bool:
    return house.resident.thread.idle and house.resident.thread.running == 0


def answers(house: House) -> None:
    """The server still does, at once."""
    house.say("still here")
    body = {"model": "tiny:1m", "messages": HELLO}
    reply = httpx.post(house.url + "/v1/chat/completions", json=body, timeout=10).json()
    assert reply["choices"][0]["message"]["content"] == "still here"


@pytest.mark.parametrize("streamed", [True, False])
def test_leaving_while_the_prompt_is_read_frees_the_lane(house: House, streamed: bool) -> None:
    gate = Gate()
    house.during_passes(gate)
    house.say("never heard", end=False)
    with caller(house.url, stream=streamed):
        assert gate.reached.wait(10)
    gate.open()
    until(lambda: idle(house))
    answers(house)


@pytest.mark.parametrize("streamed", [True, False])
def test_leaving_while_the_reply_is_written_frees_the_lane(house: House, streamed: bool) -> None:
    passes: list[int] = []
    gate = Gate()
    house.during_passes(lambda: gate() if len(passes) == 5 else passes.append(1))
    house.say("never done ", end=False)
    with caller(house.url, stream=streamed):
        assert gate.reached.wait(10)
    gate.open()
    until(lambda: idle(house))
    house.during_passes(lambda: None)
    answers(house)


@pytest.mark.parametrize("streamed", [True, False])
def test_leaving_the_queue_runs_nothing_and_ends_nobody_else(house: House, streamed: bool) -> None:
    slow, engine = threading.Event(), house.resident.thread
    house.during_passes(lambda: (slow.wait(0.01), None)[1])
    house.say("first ", "second ", end=False)
    with caller(house.url) as one, caller(house.url) as two:
        until(lambda: engine.running == 2)
        with caller(house.url, stream=streamed):
            until(lambda: engine.waiting == 1)
        until(lambda: engine.waiting == 0)
        assert engine.running == 2
        slow.set()
        replies = read_reply(one) + read_reply(two)
        assert b"first" in replies
        assert b"second" in replies
        assert len(house.requests) == 2


def test_leaving_with_a_reset_is_leaving(house: House) -> None:
    gate = Gate()
    house.during_passes(gate)
    house.say("never heard", end=False)
    with caller(house.url, stream=True) as connection:
        assert gate.reached.wait(10)
        linger = bytes.fromhex("0100000000000000")  # on, 0 s: close sends a reset
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    gate.open()
    until(lambda: idle(house))
    answers(house)


@pytest.mark.parametrize(
    "path", ["chat/completions", "messages", "prefix-cache/explain", "prefix-cache/warm"]
)
def test_leaving_while_the_body_is_sent_is_a_line_and_no_mistake(
    house: House, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
    host, port = house.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode() + b'{"model":')
    said: list[str] = []
    until(lambda: (said.append(capsys.readouterr().out), "499" in "".join(said))[1])
    assert f"left       POST /v1/{path}" in "".join(said)
    assert capsys.readouterr().err == ""
    answers(house)


def test_leaving_after_the_last_token_is_no_matter(house: House) -> None:
    house.say("short")
    with caller(house.url, stream=True):
        until(lambda: len(house.requests) == 1 and idle(house))
    answers(house)


def test_what_waits_for_a_client_that_reads_nothing_is_bounded(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "EVENTS_BEHIND_MAX", 64)
    passes, slow = [0], threading.Event()
    house.during_passes(lambda: (passes.append(1), slow.wait(0.001), None)[2])
    house.say("x", end=False)
    with serving(house.residence, buffer_bytes=BUFFER_BYTES) as url:
        with caller(url, stream=True, logprobs=True, top_logprobs=20):
            until(lambda: len(passes) > 10 and idle(house))
            assert len(passes) < CONTEXT_LENGTH // 2, "it was not cancelled"
        answers(house)


def test_a_client_that_reads_nothing_for_long_has_left(
    house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sse, "STALL_S_MAX", 0.2)
    house.say("x", end=False)
    with serving(house.residence, buffer_bytes=BUFFER_BYTES) as url:
        with caller(url, stream=True, logprobs=True, top_logprobs=20):
            until(lambda: "stalled" in capsys.readouterr().out)
            until(lambda: idle(house))
        answers(house)


def read_reply(connection: socket.socket) -> bytes:
    received = b""
    while b"finish_reason" not in received:
        piece = connection.recv(65536)
        assert piece, received
        received += piece
    return received

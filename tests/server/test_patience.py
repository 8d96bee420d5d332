"""Clients that take for ever: to send a head, to send a body, to read a reply."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from flm.server import patience
from tests.server.house import SETTINGS, House, serving
from tests.server.test_leaving import HELLO, answers, idle, until

HASTY = replace(SETTINGS, upload_s_max=0.2)
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def hasty(house: House) -> Iterator[House]:
    with serving(house.residence, HASTY) as url:
        house.url = url
        yield house


@contextmanager
def connection(house: House) -> Iterator[socket.socket]:
    host, port = house.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as opened:
        yield opened


def post(**fields: object) -> bytes:
    body = json.dumps({"model": "tiny:1m", "messages": HELLO, **fields}).encode()
    return HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def rest(opened: socket.socket) -> bytes:
    """All that comes until the server closes."""
    said = b""
    while piece := opened.recv(65536):
        said += piece
    return said


@pytest.mark.parametrize("begun", [HEAD, b"G"])
def test_a_head_that_never_ends_is_told_and_closed(hasty: House, begun: bytes) -> None:
    with connection(hasty) as opened:
        opened.sendall(begun)
        head, _, body = rest(opened).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    error = json.loads(body)["error"]
    assert error["code"] == "request_timeout"
    assert "upload-s-max" in error["fix"]
    answers(hasty)


def test_a_connection_that_says_nothing_is_closed(hasty: House) -> None:
    with connection(hasty) as opened:
        assert rest(opened) == b""


def test_a_second_head_that_never_ends_is_closed(hasty: House) -> None:
    with connection(hasty) as opened:
        opened.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert opened.recv(65536).startswith(b"HTTP/1.1 200 ")
        opened.sendall(b"GET /vers")
        assert b"HTTP/1.1 408 " in rest(opened)


def test_a_body_that_never_ends_is_told_and_closed(hasty: House) -> None:
    with connection(hasty) as opened:
        opened.sendall(HEAD + b'Content-Length: 100\r\n\r\n{"model":')
        head, _, body = rest(opened).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["error"]["code"] == "request_timeout"
    answers(hasty)


def test_patience_is_for_sending_and_not_for_being_answered(hasty: House) -> None:
    slow = threading.Event()
    hasty.during_passes(lambda: (slow.wait(0.1), None)[1])
    hasty.say("slow but sure")
    with connection(hasty) as opened:
        opened.sendall(post())
        assert b"slow but sure" in rest(opened)


def test_a_reply_that_is_not_read_does_not_hold_its_connection(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "STALL_S_MAX", 0.2)
    house.say("endless ", end=False)
    gone = threading.Event()
    with serving(house.residence, buffer_bytes=4096) as house.url, connection(house) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.sendall(post(logprobs=True, top_logprobs=20))
        until(lambda: len(house.requests) == 1 and idle(house))
        gone.wait(0.5)
        head, _, body = rest(opened).partition(b"\r\n\r\n")
    declared = int(head.lower().partition(b"content-length: ")[2].split()[0])
    assert len(body) < declared

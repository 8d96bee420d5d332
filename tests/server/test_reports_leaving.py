"""What users reported of other servers does not happen here: a client that is gone while its long
prompt is read has read something, and holds nobody up.

https://github.com/antirez/ds4/issues/333: the retry started from zero, and so for ever.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flm.engine.thread import EngineThread
from tests.server.house import serving
from tests.server.reported import GREEDY, LAYOUTS, SETTINGS, Servers, say, two_servers, words
from tests.server.test_leaving import Gate

CHUNK = 64
CHAT = [say("system", words(400)), say("user", words(600, 1))]  # 2,000 tokens
WAIT_S = 20


def finish(connection: socket.socket) -> None:
    """FIN."""
    connection.close()


def reset(connection: socket.socket) -> None:
    """RST."""
    linger = bytes.fromhex("0100000000000000")  # on, 0 s
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.close()


def half_close(connection: socket.socket) -> None:
    """FIN of one side: it might read, but it is what a proxy does whose client is gone."""
    connection.shutdown(socket.SHUT_WR)


@contextmanager
def caller(url: str, **fields: Any) -> Iterator[socket.socket]:
    body = json.dumps(GREEDY | {"messages": CHAT} | fields).encode()
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        yield connection


class Passes:
    """Counts them, and holds the engine in number `hold`."""

    def __init__(self, hold: int) -> None:
        self.count, self.hold, self.gate = 0, hold, Gate()

    def __call__(self) -> None:
        self.count += 1
        if self.count == self.hold:
            self.gate()


@pytest.fixture(params=LAYOUTS)
def servers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Servers]:
    with two_servers(tmp_path, request.param, chunk_len_max=CHUNK) as opened:
        yield opened


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once the server has told the engine to cancel."""
    told, cancel = threading.Event(), EngineThread.cancel

    def spied(self: EngineThread, request_id: str) -> None:
        cancel(self, request_id)
        told.set()

    monkeypatch.setattr(EngineThread, "cancel", spied)
    return told


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("leave", [finish, reset, half_close])
def test_a_client_gone_while_its_prompt_is_read_frees_the_lane_and_its_retry_goes_on(
    servers: Servers,
    cancelled: threading.Event,
    leave: Callable[[socket.socket], None],
    streamed: bool,
) -> None:
    length = servers.cold.chat(CHAT).length
    passes = Passes(hold=int(0.6 * length / CHUNK))
    house = servers.house
    house.during_passes(passes)
    with serving(house.residence, SETTINGS) as url, caller(url, stream=streamed) as connection:
        assert passes.gate.reached.wait(WAIT_S)
        leave(connection)
        assert cancelled.wait(WAIT_S)
        passes.gate.open()
        # Between two steps it is seen to be gone: the pass that ran was its last.
        engine = house.resident.thread
        assert engine.ask(lambda engine: engine.running).result() == 0
        assert passes.count == passes.hold
    read = house.runner.tokens_read
    assert 0.5 * length < read < 0.7 * length
    retry = servers.chat(CHAT)
    system = next(each.offset for each in servers.prompt.boundaries)
    assert retry.cached >= system > 0.3 * length


def test_the_next_in_the_queue_waits_no_longer_than_a_chunk(
    servers: Servers, cancelled: threading.Event
) -> None:
    """https://github.com/antirez/ds4/issues/333: the worker read on for a client that was gone."""
    house, passes = servers.house, Passes(hold=3)
    house.during_passes(passes)
    with serving(house.residence, SETTINGS) as url, caller(url) as leaver:
        assert passes.gate.reached.wait(WAIT_S)
        with caller(url, messages=[say("user", words(20, 5))]) as waiter:
            leaver.close()
            assert cancelled.wait(WAIT_S)
            passes.gate.open()
            assert b'"finish_reason"' in received(waiter, until=b"finish_reason")
    assert passes.count <= 3 + 2 + GREEDY["max_tokens"]


def test_while_a_pass_takes_long_pings_go_by_the_clock(servers: Servers) -> None:
    """https://github.com/antirez/ds4/pull/222: they went by tokens, and clients gave up."""
    passes = Passes(hold=5)
    servers.house.during_passes(passes)
    with (
        serving(servers.house.residence, SETTINGS) as url,
        caller(url, stream=True) as connection,
    ):
        assert passes.gate.reached.wait(WAIT_S)
        heard = received(connection, until=b": ping\n\n", times=3)
        assert passes.count == 5, "the engine is where it was"
        passes.gate.open()
        heard += received(connection, until=b"[DONE]")
        assert b"200 OK" in heard


def received(connection: socket.socket, *, until: bytes, times: int = 1) -> bytes:
    heard = b""
    while heard.count(until) < times:
        piece = connection.recv(65536)
        assert piece, heard
        heard += piece
    return heard

"""Starting and stopping: the port, the 503 while a model loads, signals."""

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from flm.errors import BadModelFile, ServerAddressInUse
from flm.server.residence.residence import Residence
from flm.server.serve import listen, run_server
from flm.settings import Settings
from tests.server.house import House, serving
from tests.server.test_leaving import until

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys, threading
from pathlib import Path
from dataclasses import replace
from flm.server.serve import run_server
from tests.server.house import SETTINGS, open_house

with open_house(Path(sys.argv[1])) as house:
    house.say("endless ", end=False)
    if sys.argv[3] == "slow":
        house.during_passes(lambda: threading.Event().wait(0.05))
    def load():
        print("loading", flush=True)
        if sys.argv[3] == "stuck":
            threading.Event().wait()
        return house.resident
    settings = replace(SETTINGS, port=int(sys.argv[2]), drain_s=float(sys.argv[4]))
    run_server(settings, ("tiny:1m", load), ready=lambda resident: print("ready", flush=True))
print("ended", flush=True)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def start(
    folder: Path, port: int, how: str, drain_s: float = 60
) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", PROGRAM, str(folder), str(port), how, str(drain_s)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return
    raise AssertionError(f"it ended without saying {word}")


def test_a_port_in_use_is_told_with_another_to_try() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ServerAddressInUse) as refusal:
            listen("127.0.0.1", port)
    assert str(port) in refusal.value.message
    assert f"flm serve --port {port + 1}" in refusal.value.fix


def test_another_flm_that_has_the_port_is_told_with_what_it_serves(house: House) -> None:
    for residence, said in (
        (house.residence, "another flm, which serves tiny:1m"),
        (Residence(), "another flm"),
    ):
        with serving(residence) as url, pytest.raises(ServerAddressInUse) as refusal:
            listen("127.0.0.1", int(url.rpartition(":")[2]))
        assert refusal.value.message.endswith(f"is taken by {said}")


@pytest.mark.parametrize(
    "said",
    [b"", b"{}", b'{"status": "ok"}', b"[" * 4096, b'{"status": "ok", "model": "a", "b": 1}'],
)
def test_a_program_that_says_something_else_is_another(said: bytes) -> None:
    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(said)
            connection.sendall(head + said if said else b"not HTTP")

    with socket.create_server(("127.0.0.1", 0)) as other:
        thread = threading.Thread(target=answer, args=(other,))
        thread.start()
        with pytest.raises(ServerAddressInUse, match="taken by another program"):
            listen("127.0.0.1", other.getsockname()[1])
        thread.join()


def test_an_address_of_another_machine_is_told() -> None:
    with pytest.raises(ServerAddressInUse) as refusal:
        listen("203.0.113.1", 52625)
    assert "--host" in refusal.value.fix


def test_a_model_that_does_not_load_ends_the_server() -> None:
    def load() -> None:
        raise BadModelFile("it is torn", fix="pull it again")

    with pytest.raises(BadModelFile):
        run_server(Settings(port=free_port()), ("tiny", load))  # type: ignore[arg-type]


def test_an_open_server_without_a_key_warns(capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> None:
        raise BadModelFile("it is torn", fix="pull it again")

    with pytest.raises(BadModelFile):
        run_server(Settings(host="0.0.0.0", port=free_port()), ("tiny", load))  # type: ignore[arg-type]
    assert "--api-key" in capsys.readouterr().err


def test_health_answers_while_the_model_loads_and_a_signal_ends_it(tmp_path: Path) -> None:
    port = free_port()
    with start(tmp_path, port, "stuck") as process:
        said(process, "loading")
        response = httpx.get(f"http://127.0.0.1:{port}/health")
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "model_loading"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


RUNNING = re.compile(r"^flm_requests_running\S* 1\.0$", re.MULTILINE)
BODY = {"model": "tiny:1m", "messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_lets_requests_end_and_two_do_not(tmp_path: Path, first: int) -> None:
    port = free_port()
    with start(tmp_path, port, "slow") as process:
        said(process, "ready")
        url = f"http://127.0.0.1:{port}"
        ask = url + "/v1/chat/completions"
        with httpx.stream("POST", ask, json=BODY | {"stream": True}, timeout=10) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(first)
            said(process, "Stopping: 1 request may take 60 s more to end")
            for _ in range(10):
                assert next(lines) is not None
            for refusal in (httpx.post(ask, json=BODY), httpx.get(url + "/health")):
                assert refusal.status_code == 503
                assert refusal.json()["error"]["code"] == "server_stopping"
                assert int(refusal.headers["retry-after"]) > 0
            process.send_signal(signal.SIGINT)
            assert "server_stopping" in [line for line in lines if line][-1]
        said(process, "ended")
        assert process.wait(10) == 0


@pytest.mark.parametrize("streamed", [True, False])
def test_who_does_not_end_in_time_is_told_why_it_was_cut_off(
    tmp_path: Path, streamed: bool
) -> None:
    port = free_port()
    with start(tmp_path, port, "slow", drain_s=0.2) as process, ThreadPoolExecutor() as pool:
        said(process, "ready")
        url = f"http://127.0.0.1:{port}"
        ask = partial(httpx.post, url + "/v1/chat/completions", timeout=10)
        running = pool.submit(ask, json=BODY | {"stream": streamed})
        until(lambda: RUNNING.search(httpx.get(url + "/metrics").text) is not None)
        process.send_signal(signal.SIGTERM)
        said(process, "ended")
        assert process.wait(10) == 0
    reply = running.result()
    assert reply.status_code == (200 if streamed else 503)
    assert "server_stopping" in reply.text

"""Files of a hub that runs on loopback, through the real client."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from flm.errors import DownloadFailed
from flm.hub import huggingface
from flm.hub.huggingface import RemoteFile, choose

# The client writes 10 MiB at a time, and sockets hold a few more.
BIG = bytes(range(256)) * (192 * 1024)
CUT_BYTES = 40 * 2**20
FILES = {"model.Q8_0.gguf": BIG, "config.json": b"{}"}


class Hub(ThreadingHTTPServer):
    """`hold` stops the next large reply after CUT_BYTES, until it is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Reply)
        self.hold: Event | None = None
        self.cut = Event()
        self.ranges: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Reply(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/org/repo"):
            files = [self.entry(name, data) for name, data in FILES.items()]
            body = json.dumps({"id": "org/repo", "sha": "a" * 40, "siblings": files}).encode()
            self.answer(200, body)
        elif (name := self.path.rpartition("/")[2]) in FILES:
            self.answer_file(FILES[name])
        else:
            self.answer(404, b"")

    def entry(self, name: str, data: bytes) -> dict[str, object]:
        lfs = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 1}
        blob = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
        entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": blob}
        return entry | ({"lfs": lfs} if len(data) > 1000 else {})

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer_file(self, data: bytes) -> None:
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        self.send_response(206 if asked else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("Content-Length", str(len(data) - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if len(data) > 1000:
            self.server.ranges.append(asked)
        hold, self.server.hold = self.server.hold, None
        if hold is not None:
            self.wfile.write(data[start:CUT_BYTES])
            self.server.cut.set()
            hold.wait()
            return
        self.wfile.write(data[start:])


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def start_pull(hub: Hub, home: Path, *words: str) -> "subprocess.Popen[str]":
    environ = os.environ | {"HF_ENDPOINT": hub.url, "FLM_MODEL_PATH": str(home)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
    return subprocess.Popen(
        [sys.executable, "-m", "flm", "pull", *words],
        env=environ | {"HF_HOME": str(home / "hf"), "NO_PROXY": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_an_interrupted_pull_goes_on_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    release = hub.hold = Event()
    with start_pull(hub, tmp_path, "hf:org/repo/model.Q8_0.gguf") as first:
        assert hub.cut.wait(20)
        first.send_signal(signal.SIGINT)
        said, _ = first.communicate(timeout=20)
    release.set()
    assert first.returncode == 130, said
    with start_pull(hub, tmp_path, "hf:org/repo/model.Q8_0.gguf") as second:
        said, _ = second.communicate(timeout=20)
    assert second.returncode == 0, said
    assert "[FLM]  Downloading 1/1: model.Q8_0.gguf" in said
    assert [found.read_bytes() for found in tmp_path.rglob("*.gguf")] == [BIG]
    assert hub.ranges[0] is None
    assert hub.ranges[1] is not None, "the second pull began at 0"


def remote(*names: str) -> list[RemoteFile]:
    return [RemoteFile(name, 1, None, None) for name in names]


def test_a_repository_gives_its_best_gguf_else_its_folder() -> None:
    many = remote(
        "a.F16.gguf", "a.Q4_K_M-00001-of-00002.gguf", "a.q4_0.gguf", "a.Q8_0.gguf", "c.json"
    )
    assert [item.name for item in choose("o/r", many, "")] == ["a.q4_0.gguf"]
    folder = remote("config.json", "model.safetensors", "README.md", "onnx/model.onnx", "t.jinja")
    assert [item.name for item in choose("o/r", folder, "")] == [
        "config.json",
        "model.safetensors",
        "t.jinja",
    ]
    with pytest.raises(DownloadFailed, match="neither"):
        choose("o/r", remote("README.md"), "")
    with pytest.raises(DownloadFailed, match=r"has no file x\.gguf") as error:
        choose("o/r", many, "x.gguf")
    assert "a.q4_0.gguf" in error.value.fix


def test_a_file_is_good_by_its_size_and_hash(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"data")
    sha256 = hashlib.sha256(b"data").hexdigest()
    blob = hashlib.sha1(b"blob 4\0data").hexdigest()
    assert huggingface._is_good(path, RemoteFile("f", 4, sha256, None), None)
    assert huggingface._is_good(path, RemoteFile("f", 4, None, blob), None)
    assert not huggingface._is_good(path, RemoteFile("f", 5, None, None), None)
    assert not huggingface._is_good(path, RemoteFile("f", 4, "0" * 64, None), None)
    assert not huggingface._is_good(path, RemoteFile("f", 4, sha256, None), "0" * 64)
    assert not huggingface._is_good(path, RemoteFile("f", 4, None, "0" * 40), None)


def test_the_network_being_away_is_one_clear_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    with pytest.raises(DownloadFailed, match="could not be reached: Name or service") as error:
        huggingface.fetch("o/r", "", tmp_path, sha256=None, progress=lambda *_: None)
    assert "flm serve ./model.gguf" in error.value.fix

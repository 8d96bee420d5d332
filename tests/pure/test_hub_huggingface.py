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
from flm.hub.huggingface import RemoteFile, choose, choose_tower

# The client writes 10 MiB at a time, and sockets hold a few more.
BIG = bytes(range(256)) * (192 * 1024)
CUT_BYTES = 40 * 2**20
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
WEIGHTS = (FIXTURES / "qwen35_r1" / "qwen35_r1.Q4_1.gguf").read_bytes()  # of a kind that may see
TOWER = b"GGUF of a tower" * 100
REPOSITORIES = {
    "org/repo": {"model.Q8_0.gguf": BIG, "config.json": b"{}"},
    "org/text": {"tiny.Q4_1.gguf": WEIGHTS},
    "org/sees": {"tiny.Q4_1.gguf": WEIGHTS, "mmproj-F32.gguf": BIG, "mmproj-F16.gguf": TOWER},
}


class Hub(ThreadingHTTPServer):
    """`hold` stops the next large reply after CUT_BYTES, until it is set; the file called `damaged`
    is never sent as it is.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Reply)
        self.hold: Event | None = None
        self.cut = Event()
        self.ranges: list[str | None] = []
        self.repositories = {name: dict(files) for name, files in REPOSITORIES.items()}
        self.damaged = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Reply(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        _, *parts = self.path.partition("?")[0].split("/")
        asked = parts[2:4] if parts[0] == "api" else parts[:2]
        repository, name = "/".join(asked), parts[-1]
        files = self.server.repositories.get(repository, {})
        if parts[0] == "api":
            listed = [self.entry(name, data) for name, data in files.items()]
            body = json.dumps({"id": repository, "sha": "a" * 40, "siblings": listed}).encode()
            self.answer(200, body)
        elif name in files:
            data = files[name]
            self.answer_file(data[::-1] if name == self.server.damaged else data)
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


def start(hub: Hub, home: Path, *words: str) -> "subprocess.Popen[str]":
    environ = os.environ | {"HF_ENDPOINT": hub.url, "FLM_MODEL_PATH": str(home)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
    return subprocess.Popen(
        [sys.executable, "-m", "flm", *words],
        env=environ | {"HF_HOME": str(home / "hf"), "NO_PROXY": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_an_interrupted_pull_goes_on_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    release = hub.hold = Event()
    with start(hub, tmp_path, "pull", "hf:org/repo/model.Q8_0.gguf") as first:
        assert hub.cut.wait(20)
        first.send_signal(signal.SIGINT)
        said, _ = first.communicate(timeout=20)
    release.set()
    assert first.returncode == 130, said
    with start(hub, tmp_path, "pull", "hf:org/repo/model.Q8_0.gguf") as second:
        said, _ = second.communicate(timeout=20)
    assert second.returncode == 0, said
    assert "[FLM]  Downloading 1/1: model.Q8_0.gguf" in said
    assert [found.read_bytes() for found in tmp_path.rglob("*.gguf")] == [BIG]
    assert hub.ranges[0] is None
    assert hub.ranges[1] is not None, "the second pull began at 0"


def ran(hub: Hub, home: Path, *words: str) -> str:
    with start(hub, home, *words) as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    return said


def here(home: Path) -> list[str]:
    return sorted(found.name for found in home.rglob("*.gguf"))


def test_a_model_that_takes_pictures_comes_with_its_tower(hub: Hub, tmp_path: Path) -> None:
    model = "hf:org/sees/tiny.Q4_1.gguf"
    ran(hub, tmp_path, "pull", model)
    assert here(tmp_path) == ["mmproj-F16.gguf", "tiny.Q4_1.gguf"]
    (entry,) = json.loads(ran(hub, tmp_path, "list", "--filter", "installed", "--json"))["models"]
    assert entry["label"] == ["vision"]
    assert entry["vlm"]
    assert "mmproj-F16.gguf: verified" in ran(hub, tmp_path, "check", model)
    (tower,) = tmp_path.rglob("mmproj-F16.gguf")
    tower.write_bytes(TOWER[::-1])
    ran(hub, tmp_path, "pull", model, "--force")
    assert tower.read_bytes() == TOWER
    ran(hub, tmp_path, "remove", model)
    assert here(tmp_path) == []


def test_one_that_came_without_a_tower_gets_it_when_it_is_pulled_again(
    hub: Hub, tmp_path: Path
) -> None:
    model = "hf:org/text/tiny.Q4_1.gguf"
    for _ in range(2):
        ran(hub, tmp_path, "pull", model)
        assert here(tmp_path) == ["tiny.Q4_1.gguf"]
    hub.repositories["org/text"]["mmproj-tiny-BF16.gguf"] = TOWER
    ran(hub, tmp_path, "pull", model)
    assert here(tmp_path) == ["mmproj-tiny-BF16.gguf", "tiny.Q4_1.gguf"]


def test_without_its_tower_a_model_is_here_all_the_same(hub: Hub, tmp_path: Path) -> None:
    hub.damaged = "mmproj-F16.gguf"
    said = ran(hub, tmp_path, "pull", "hf:org/sees/tiny.Q4_1.gguf")
    assert "Pictures are not taken until flm pull is run again" in said
    assert here(tmp_path) == ["tiny.Q4_1.gguf"]
    (entry,) = json.loads(ran(hub, tmp_path, "list", "--filter", "installed", "--json"))["models"]
    assert entry["label"] == []


def test_a_model_of_text_leaves_the_tower_where_it_is(hub: Hub, tmp_path: Path) -> None:
    text = (FIXTURES / "llama" / "llama.Q4_K_M.gguf").read_bytes()
    hub.repositories["org/sees"]["tiny.Q4_1.gguf"] = text
    ran(hub, tmp_path, "pull", "hf:org/sees/tiny.Q4_1.gguf")
    assert here(tmp_path) == ["tiny.Q4_1.gguf"]


def test_of_several_towers_the_first_as_exact_as_the_weights_is_taken() -> None:
    def taken(*names: str, weights: str = "a.gguf") -> str | None:
        found = choose_tower(remote("a.gguf", *names), weights)
        return found.name if found else None

    every = ["mmproj-F32.gguf", "mmproj-a-Q8_0.gguf", "mmproj-BF16.gguf", "mmproj-a-f16.gguf"]
    for count in range(len(every), 0, -1):
        assert taken(*every[:count]) == every[count - 1]
    assert taken("mmproj.gguf", "mmproj-F32.gguf") == "mmproj-F32.gguf"
    assert taken("mmproj.gguf") == "mmproj.gguf"
    assert taken("sub/mmproj-F16.gguf", "mmproj-F16.json") is None
    assert taken("sub/mmproj-F16.gguf", weights="sub/a.gguf") == "sub/mmproj-F16.gguf"


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

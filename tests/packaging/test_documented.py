"""Every command of README.md and docs/ is run, as it stands there, in a copy of the checkout."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from bench.shapes import TINY, qwen35
from flm.hub.reference import resolve
from tests.pure import drawn
from tests.server.seeing import seeing_folder

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FETCHED = ("qwen3:4b", "qwen3.5:4b")  # a tiny model of random weights is here in their place
SEES = "qwen3.5:0.8b"  # and in its place one that takes pictures
NOT_RUN = {  # by how a command begins: why
    "claude": "Claude Code, another program",
    "qwen": "another program, tried by tests/server/test_apps.py",
    "flm kernels build llama3.2:1b": "mlir-aie and Peano",
    "flm kernels selftest llama3.2:1b --device npu": "an NPU",
}
DRY = ("make test", "make lint")  # they run this: make says what it would do
FAILS = {"flm validate": 1}  # where there is no NPU
SETS_UP = ("source ", "export ", "cd ")
ASKS = re.compile(r"127\.0\.0\.1:52625|flm cache|examples/(reuse|picture)")
SERVES = re.compile(r"(flm|make) serve\b")
QUICK = re.compile(r"flm (version|list|validate|pull|check|remove)\b|make (install|test|lint)|rm ")
REQUEST = {"model": "smollm2:135m", "messages": [{"role": "user", "content": "Say hello."}]}
START_S, RUN_S = 300, 600


@dataclass(frozen=True, slots=True)
class Block:
    place: str
    language: str
    commands: tuple[str, ...]

    @property
    def is_quick(self) -> bool:
        return self.language != "python" and all(
            each.startswith((*SETS_UP, *NOT_RUN)) or QUICK.match(each) for each in self.commands
        )


@dataclass(frozen=True, slots=True)
class Checkout:
    """Its folder, the home of who works there, and ports that are free."""

    folder: Path
    home: Path
    port: int
    other_port: int

    def as_here(self, command: str) -> str:
        url = f"http://127.0.0.1:{self.port}/v1"
        command = command.replace("examples/reuse.py", f"examples/reuse.py {url}")
        asked = "examples/picture.py photo.jpg"
        command = command.replace(asked, f"{asked} 'What is this?' {url}")
        return command.replace(":52625", f":{self.port}").replace("8080", str(self.other_port))

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("FLM_")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        ours = {"HOME": str(self.home), "PATH": path, "PYTHONPATH": str(ROOT)}
        return kept | ours | {"FLM_SERVE_PORT": str(self.port)}


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text()
        for found in re.finditer(r"^```(bash|console|python)\n(.*?)^```$", text, re.M | re.S):
            language, body = found.groups()
            if language == "python":
                commands = [body] if page.name != "design.md" else []  # which has protocols
            else:
                lines = body.replace("\\\n", " ").splitlines()
                if language == "console":
                    lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
                commands = [line for line in lines if line and not line.startswith("#")]
            line = text.count("\n", 0, found.start()) + 1
            if commands:
                yield Block(f"{page.name}:{line}", language, tuple(commands))


def each_block() -> list[object]:
    slow = (pytest.mark.slow, pytest.mark.timeout(1800))
    return [
        pytest.param(block, id=block.place, marks=() if block.is_quick else slow)
        for block in blocks()
    ]


@pytest.fixture(scope="session")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seeing_folder(tmp_path_factory.mktemp("sees") / "hf")


@pytest.fixture
def checkout(tmp_path: Path, smollm2: Path, seeing: Path) -> Checkout:
    tiny = qwen35(smollm2, shape=TINY)
    folder, home = tmp_path / "flm", tmp_path / "home"
    (folder / ".venv").mkdir(parents=True)
    for path in (*ROOT.glob("[!.]*"), *Path(sys.prefix).iterdir()):
        of_venv = path.parent == Path(sys.prefix)
        (folder / (".venv" if of_venv else ".") / path.name).symlink_to(path)
    for stamp in ("installed", "installed-test", "installed-all"):
        (folder / ".venv" / stamp).unlink(missing_ok=True)
        (folder / ".venv" / stamp).touch()
    (folder / "my.gguf").symlink_to(tiny)
    (folder / "request.json").write_text(json.dumps(REQUEST))
    (folder / "photo.jpg").write_bytes(drawn.file(drawn.image(size=(80, 60)), "JPEG"))
    home.mkdir()
    (home / ".curlrc").write_text("fail-with-body\n")  # or a refusal would pass
    models = home / ".config" / "flm" / "models"
    for tag, path in (*((tag, tiny) for tag in FETCHED), (SEES, seeing)):
        (models / resolve(tag).name).mkdir(parents=True)
        record = {"reference": tag, "path": str(path)}
        (models / resolve(tag).name / "source.json").write_text(json.dumps(record))
    real = smollm2.parents[1]
    shutil.copytree(
        real,
        models / real.name,
        copy_function=os.symlink,
        ignore=shutil.ignore_patterns("kernels", ".lock"),
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return Checkout(folder, home, one.getsockname()[1], two.getsockname()[1])


@pytest.mark.parametrize("block", each_block())
def test_what_is_to_be_typed_runs(block: Block, checkout: Checkout) -> None:
    if block.language == "python":
        _run(checkout, f"{sys.executable} -c {_quoted(block.commands[0])}")
        return
    set_up: list[str] = []
    for typed in block.commands:
        command = checkout.as_here(typed)
        if typed.startswith(SETS_UP):
            set_up.append(command)
            _run(checkout, *set_up)
        elif SERVES.match(typed):
            with _serving(checkout, *set_up, command):
                pass
        elif ASKS.search(typed):
            sees = SEES in typed or "picture" in typed
            with _serving(checkout, f"flm serve {SEES if sees else 'smollm2:135m'}"):
                _run(checkout, *set_up, command)
        elif not typed.startswith(tuple(NOT_RUN)):
            _run(checkout, *set_up, command)


def test_nothing_else_is_to_be_typed() -> None:
    for page in PAGES:
        fences = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S)
        for language, body in fences:
            assert language not in ("sh", "shell", "zsh"), f"{page.name}: call it bash"
            typed = [line for line in body.splitlines() if line.startswith("$ ")]
            assert language == "console" or not typed, f"{page.name}: {typed} wants a console"


def test_what_is_not_run_is_still_in_the_docs() -> None:
    commands = [command for block in blocks() for command in block.commands]
    for beginning in (*NOT_RUN, *DRY, *FAILS):
        assert any(command.startswith(beginning) for command in commands), beginning


def _run(checkout: Checkout, *lines: str) -> None:
    command = lines[-1].split("  #")[0].strip()
    if command in DRY:
        lines = (*lines[:-1], f"{command} --dry-run")
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(lines)],
        cwd=checkout.folder,
        env=checkout.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    assert done.returncode == FAILS.get(command, 0), done.stdout + done.stderr


@contextmanager
def _serving(checkout: Checkout, *lines: str) -> Iterator[None]:
    *before, command = lines
    named = re.search(r"--port (\d+)", command)
    url = f"http://127.0.0.1:{named[1] if named else checkout.port}/health"
    process = subprocess.Popen(
        ["bash", "-e", "-c", "\n".join([*before, f"exec {command}"])],
        cwd=checkout.folder,
        env=checkout.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        ends = time.monotonic() + START_S
        while not _is_up(url) and process.poll() is None and time.monotonic() < ends:
            time.sleep(0.1)
        up = _is_up(url)
        if up:
            yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert up, said.decode()


def _is_up(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"

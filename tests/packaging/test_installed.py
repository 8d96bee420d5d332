"""What is built installs, serves and goes away again, outside of the checkout."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "tests" / "fixtures" / "llama" / "llama.Q4_K_M.gguf"
START_S = 120
WITH_DPKG = os.environ.get("FLM_TEST_DEB") == "1"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and an sdist of this checkout, and a venv that made them."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("flm", "models", "npu_kernels"):
        shutil.copytree(
            ROOT / name,
            source / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
        )
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    _run([python, "-m", "pip", "install", "--quiet", "build"])
    _run([python, "-m", "build", "--outdir", folder / "dist", source])
    return folder


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_it_installs_in_a_clean_venv_and_serves(built: Path, tmp_path: Path, kind: str) -> None:
    (package,) = (built / "dist").glob(kind)
    venv.create(tmp_path / "venv", with_pip=True)
    _run([tmp_path / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", package])
    _answers([tmp_path / "venv" / "bin" / "flm"], tmp_path)


@pytest.mark.skipif(not shutil.which("pipx"), reason="pipx is not here")
def test_pipx_installs_it(built: Path, tmp_path: Path) -> None:
    (wheel,) = (built / "dist").glob("*.whl")
    homes = {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    _run(["pipx", "install", "--python", sys.executable, wheel], homes)
    said = _run([tmp_path / "bin" / "flm", "version"], {"HOME": str(tmp_path)})
    assert said.startswith("FLM v")


@pytest.mark.skipif(not WITH_DPKG, reason="FLM_TEST_DEB=1 lets root install a package here")
def test_the_debian_package_installs_serves_and_leaves_nothing(tmp_path: Path) -> None:
    made = _run([ROOT / "packaging" / "debian" / "build", tmp_path]).strip()
    if shutil.which("lintian"):
        said = subprocess.run(
            ["lintian", "--fail-on", "error,warning", made], capture_output=True, text=True
        )
        assert said.returncode == 0, said.stdout
    _run(["dpkg", "--install", made])
    try:
        assert "FLM v" in _run(["flm", "version"])
        model = tmp_path / MODEL.name
        shutil.copy(MODEL, model)
        for path in (tmp_path, *tmp_path.parents[:2], model):
            path.chmod(path.stat().st_mode | 0o055)
        state = Path("/var/lib/flm")  # which systemd makes for the unit
        state.mkdir(exist_ok=True)
        shutil.chown(state, "flm", "flm")
        command = ["setpriv", "--reuid=flm", "--regid=flm", "--init-groups", "/usr/bin/flm"]
        _answers(command, state, model=model, flags=["--config", "/etc/flm/flm.toml"])
    finally:
        _run(["dpkg", "--purge", "flm"])
    for left in ("/usr/lib/flm", "/usr/bin/flm", "/etc/flm", "/var/lib/flm"):
        assert not Path(left).exists()


def _answers(
    flm: Sequence[Path | str], home: Path, *, model: Path = MODEL, flags: Sequence[str] = ()
) -> None:
    with _serving([*flm, "serve", model, *flags], home) as url:
        (served, *_) = httpx.get(f"{url}/v1/models").json()["data"]
        messages = [{"role": "user", "content": "Hello."}]
        body = {"model": served["id"], "messages": messages, "max_tokens": 4}
        reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        assert reply.json()["usage"]["completion_tokens"] > 0
        page = httpx.get(url, headers={"Accept": "text/html"}).text
        for path in re.findall(r'(?:src|href)="(page/[^"]+)"', page):
            assert httpx.get(f"{url}/{path}").status_code == 200


@contextmanager
def _serving(command: Sequence[Path | str], home: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [*map(str, command), "--port", str(port)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "FLM_MODEL_PATH": str(home)}
    process = subprocess.Popen(
        words, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, process)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said.decode()


def _wait(url: str, process: "subprocess.Popen[bytes]") -> None:
    ends = time.monotonic() + START_S
    while time.monotonic() < ends and process.poll() is None:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    process.kill()
    pytest.fail("it does not serve: " + process.communicate()[0].decode())


def _run(words: Sequence[Path | str], further: dict[str, str] | None = None) -> str:
    """What a command prints that must go well. It sees nothing of this checkout."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    environment = {k: v for k, v in os.environ.items() if k not in hidden} | (further or {})
    said = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, env=environment, cwd="/"
    )
    assert said.returncode == 0, said.stdout + said.stderr
    return said.stdout

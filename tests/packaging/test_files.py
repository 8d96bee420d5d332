"""What stands in packaging/ agrees with the program that it packages."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from bench.webui import SETTINGS, told
from flm.cli.app import COMMANDS
from flm.settings import FIELDS, Settings, load_settings, variable

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
VARIABLES = {variable(name) for name in FIELDS}
TEXTS = sorted(
    path for path in PACKAGING.rglob("*") if path.is_file() and path.suffix not in (".pyc", ".py")
)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_setting_named_there_is_one(path: Path) -> None:
    ours = set(re.findall(r"\bFLM_[A-Z_]*[A-Z]", path.read_text())) - {"FLM_MODEL", "FLM_TEST_DEB"}
    assert ours <= VARIABLES


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_the_port_is_the_default_one(path: Path) -> None:
    for port in re.findall(r"\b5\d{4}\b", path.read_text()):
        assert int(port) == Settings().port


def test_the_package_serves_with_settings_that_flm_reads() -> None:
    config = PACKAGING / "debian" / "flm.toml"
    assert load_settings(config=config, environ={}) == Settings()
    said = config.read_text().replace('# host = "', 'host = "').replace("# api-key", "api-key")
    with_host = said.replace('host = "127.0.0.1"\n', "", 1)
    assert tomllib.loads(with_host)["host"] == "0.0.0.0"


@pytest.mark.parametrize("name", ["compose.yaml", "compose.open-webui.yaml"])
def test_a_compose_file_waits_for_the_model_and_publishes_to_this_machine_alone(name: str) -> None:
    services = yaml.safe_load((PACKAGING / name).read_text())["services"]
    flm = services.pop("flm")
    assert flm["build"] == {"context": "..", "dockerfile": "packaging/Containerfile"}
    assert flm["command"][0] == "serve"
    assert "FLM_API_KEY" in flm["environment"]
    for other in services.values():
        assert other["depends_on"] == {"flm": {"condition": "service_healthy"}}
        assert f"http://flm:{Settings().port}/v1" in other["environment"].values()
    for service in (flm, *services.values()):
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_open_webui_is_told_of_flm_as_it_was_tried() -> None:
    text = (PACKAGING / "compose.open-webui.yaml").read_text()
    said = yaml.safe_load(text)["services"]["open-webui"]["environment"]
    model, key = "${FLM_MODEL:-qwen3.5:4b}", "${FLM_API_KEY:?set FLM_API_KEY}"
    tried = {"RAG_EMBEDDING_MODEL": SETTINGS["RAG_EMBEDDING_MODEL"]}
    tried |= told("openai", f"http://flm:{Settings().port}", model)
    for name, value in tried.items():
        assert said[name].lower() == (key if name.endswith("_KEY") else value).lower()


def test_the_container_runs_as_nobody_in_particular_and_copies_all_of_the_package() -> None:
    lines = (PACKAGING / "Containerfile").read_text().splitlines()
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    assert {"flm", "models", "npu_kernels", "pyproject.toml"} <= copied
    assert lines.index("USER flm") < lines.index('ENTRYPOINT ["flm"]')


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not here")
def test_systemd_knows_every_line_of_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "flm.service"
    text = (PACKAGING / "systemd" / "flm.service").read_text()
    unit.write_text(text.replace("/usr/bin/flm", "/bin/true").replace("man:flm(1)", "man:true(1)"))
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    assert said.stderr == ""
    assert said.returncode == 0


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not here")
def test_scripts_are_as_a_linter_likes_them() -> None:
    scripts = [PACKAGING / "debian" / name for name in ("build", "postinst", "prerm", "postrm")]
    said = subprocess.run(["shellcheck", *map(str, scripts)], capture_output=True, text=True)
    assert said.stdout == ""


def _written_by(script: str) -> str:
    """What a script of packaging/ prints."""
    done = subprocess.run(
        [sys.executable, str(PACKAGING / script)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return done.stdout


def test_the_reference_of_the_api_is_what_the_server_says() -> None:
    assert (ROOT / "docs" / "api.md").read_text() == _written_by("api.py")


def test_the_manual_page_tells_of_every_command_and_option() -> None:
    said = _written_by("man.py")
    page = said.replace("\\-", "-")
    for command in COMMANDS:
        assert f".SS flm {command}" in page
    for name in ("--prefix-cache-mb", "--prefix-slots", "--prefix-min-gain", "--ctx-len, -c N"):
        assert f".B {name}" in page
    assert "[bold]" not in page
    if shutil.which("groff"):
        drawn = subprocess.run(
            ["groff", "-K", "utf8", "-man", "-Tutf8", "-ww", "-z"],
            input=said.encode(),
            capture_output=True,
        )
        assert drawn.stderr == b""


@pytest.mark.parametrize(
    ("words", "shown"),
    [("flm ser", "serve"), ("flm serve --prefix-s", "--prefix-slots"), ("flm cache ex", "explain")],
)
def test_a_shell_completes_commands_and_options(words: str, shown: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_FLM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    said = subprocess.run(
        [sys.executable, "-m", "flm"], capture_output=True, text=True, env=environment
    )
    assert shown in said.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_makes_a_shell_complete_is_printed(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from flm.cli.app import run

    assert run(["completion", shell]) == 0
    assert "_FLM_COMPLETE" in capsys.readouterr().out

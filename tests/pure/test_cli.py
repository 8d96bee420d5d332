"""What drives FastFlowLM drives us: the grammar, the words, the JSON, the exit codes."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flm import __version__, console
from flm.cli import validate
from flm.cli.app import COMMANDS, run, split_command
from flm.devices.probe import probe
from flm.engine.plan import CTX_LEN_STEP
from flm.hub.disk import Progress
from flm.hub.shelf import Shelf
from flm.models.cards import cards
from flm.settings import Settings
from tests.pure.npus import make_npu


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FLM_MODEL_PATH", str(tmp_path / "flm"))
    monkeypatch.delenv("FLM_SERVE_PORT", raising=False)
    monkeypatch.delenv("FLM_DEVICE", raising=False)
    yield tmp_path
    console.configure()


@pytest.fixture
def mine(home: Path) -> Path:
    """A model by path, pulled."""
    path = home / "mine.gguf"
    path.write_bytes(b"GGUF")
    assert run(["pull", str(path)]) == 0
    return path


def test_a_pull_says_whether_anything_was_fetched(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["pull", str(mine)]) == 0
    assert "Nothing to fetch" in capsys.readouterr().out, "it is on the disk"

    def fetch(model: str, settings: Settings, *, progress: Progress, **options: bool) -> Path:
        progress("mine.gguf", 4, 4)
        return mine

    monkeypatch.setattr("flm.cli.pull.pull", fetch)
    assert run(["pull", str(mine)]) == 0
    said = capsys.readouterr().out
    assert "Nothing to fetch" not in said
    assert "Model downloaded successfully!" in said


@pytest.mark.parametrize(
    ("words", "command", "rest"),
    [
        ("serve smollm2:135m --ctx-len 4096", "serve", "smollm2:135m --ctx-len 4096"),
        ("--port 8001 serve --quiet smollm2:135m", "serve", "--port 8001 --quiet smollm2:135m"),
        ("--json list", "list", "--json"),
        ("--port=8001 serve", "serve", "--port=8001"),
        ("--prefix-shared serve smollm2:135m", "serve", "--prefix-shared smollm2:135m"),
        ("--reuse-prompt off serve", "serve", "--reuse-prompt off"),
        ("--help serve", "serve", "--help"),
        ("-v", None, "-v"),
        ("", None, ""),
    ],
)
def test_options_may_stand_anywhere(words: str, command: str | None, rest: str) -> None:
    assert split_command(words.split()) == (command, rest.split())


def test_an_unknown_command_is_told_in_fastflowlms_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["brew"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "Invalid command: brew\nUse --help for usage information\n")


def test_a_slip_in_a_command_is_told_with_what_was_meant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["Sevre", "smollm2:135m"]) == 1
    assert "Did you mean flm serve?" in capsys.readouterr().err


def test_an_unknown_model_is_told_in_fastflowlms_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pull", "gpt-9:1b"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == (
        "[ERROR]  Model not found: gpt-9:1b; Please check with `flm list` and try again."
    )
    assert second.startswith("         ")


def test_version_and_port_for_people_and_programs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLM_SERVE_PORT", "8001")
    for words in (["version"], ["-v"], ["version", "--json"], ["port"], ["port", "-j"]):
        assert run(words) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"FLM v{__version__}",
        f"FLM v{__version__}",
        f'{{ "version": "{__version__}" }}',
        "Server Port: 8001",
        '{ "port": 8001 }',
    ]


def test_list_marks_what_is_here_and_says_what_fits(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flm.devices.machine.memory_bytes", lambda: 22 * 2**30)
    capsys.readouterr()
    assert run(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Models:"
    said = {line.split()[1]: line for line in lines[1:]}
    assert said["smollm2:135m"].startswith("  - smollm2:135m ⏬  ")
    assert said["smollm2:135m"].endswith("GiB of kept prompts, fits")
    assert said["all-minilm:l6-v2"].endswith("GiB in memory, fits")
    assert re.search(r"GiB in memory, fits with --ctx-len \d+$", said["qwen3:4b"])
    assert said["qwen3.8:27b"].endswith("does not fit")
    assert lines[-1].startswith(f"  - {mine} ✅  ")
    assert run(["list", "--filter", "installed", "--quiet"]) == 0
    assert capsys.readouterr().out == f"Models:\n  - {mine}\n"
    assert run(["remove", str(mine)]) == 0
    assert mine.exists()
    capsys.readouterr()
    assert run(["list", "--filter=installed"]) == 0
    assert capsys.readouterr().out == "Models:\n  No models found for the specified filter.\n"


def test_list_json_has_the_keys_that_lemonade_reads(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["list", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    assert [model["name"] for model in models] == [*(card.tag for card in cards()), str(mine)]
    for model in models:
        assert {"name", "model", "installed", "footprint", "label", "url"} <= model.keys()
        assert model["model"] == model["name"]
    assert [model["installed"] for model in models] == [False] * len(cards()) + [True]
    assert run(["list", "--filter", "installed", "--quiet", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["models"]) == 1


@pytest.mark.parametrize("words", ["'list'", "'list', '--json'"])
def test_list_loads_nothing_heavy(words: str) -> None:
    """Importing these is what would make it slow."""
    code = (
        f"import sys; from flm.cli.app import run; run([{words}]);"
        "heavy = {'onnxruntime', 'onnx', 'numpy', 'pydantic', 'fastapi', 'rich', 'tokenizers',"
        " 'jinja2', 'huggingface_hub', 'prompt_toolkit', 'asyncio'};"
        "sys.stderr.write(', '.join(sorted(heavy & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), f"flm list imports {done.stderr}"


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, Any]]:
    """What flm list --json says of memory, by tag."""
    capsys.readouterr()
    assert run(["list", "--json", *words]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    return {model["name"]: model["memory"] for model in models}


def test_list_says_what_fits_this_machine_at_the_chosen_context(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flm.devices.machine.memory_bytes", lambda: 22 * 2**30)
    usual, short = listed(capsys), listed(capsys, "--ctx-len", "512", "--lanes", "1")
    assert usual.pop(str(mine)) is None  # no card
    encoder = usual.pop("all-minilm:l6-v2")
    assert encoder["fits"]
    assert encoder["lanes_bytes"] == encoder["prefix_cache_bytes"] == 0
    assert usual["smollm2:135m"]["fits"]
    assert not usual["qwen3.8:27b"]["fits"]
    assert usual["qwen3.8:27b"]["context_length_that_fits"] is None
    sees = {card.tag for card in cards() if card.sees}
    assert {tag for tag, memory in usual.items() if memory["pictures_bytes"]} == sees
    for tag, memory in usual.items():
        most = memory["machine_bytes"] * 15 // 16  # the rest is for what else runs
        assert memory["fits"] is (memory["total_bytes"] <= most), tag
        assert short[tag]["context_length"] == 512
        assert short[tag]["lanes_bytes"] < memory["lanes_bytes"]
    tight = usual["qwen3:4b"]
    length = tight["context_length_that_fits"]
    assert not tight["fits"]
    assert listed(capsys, "--ctx-len", str(length))["qwen3:4b"]["fits"]
    longer = listed(capsys, "--ctx-len", str(length + CTX_LEN_STEP))
    assert not longer["qwen3:4b"]["fits"], "it is the longest"


def test_list_is_a_table_where_a_person_looks(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flm.devices.machine.memory_bytes", lambda: 22 * 2**30)
    monkeypatch.setattr(console, "on_terminal", lambda: True)
    capsys.readouterr()
    assert run(["list"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "⏬" in rows["smollm2:135m"]
    assert " yes " in rows["smollm2:135m"]
    assert " --ctx-len " in rows["qwen3:4b"]
    assert re.search(r" \d+\.\d \+ \d\.\d GiB ", rows["smollm2:135m"])
    assert rows["qwen3:4b"].rstrip().endswith("thinks, tools")
    assert " no " in rows["qwen3.8:27b"]
    assert run(["list", "--filter", "installed", "--quiet"]) == 0
    assert capsys.readouterr().out == f"Models:\n  - {mine}\n"


def test_validate_reports_the_npu_as_fastflowlm_does_and_the_cpu_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = run(["validate", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["object"] == "npu_stack_validation"
    assert code == (0 if report["ready"] else 1)
    keys = "platform kernel kernel_ok amd_device_found all_fw_ok enough_cols memlock_limit"
    assert {*keys.split(), "memlock_ok", "devices"} <= report.keys()
    assert report["cpu_ready"]


def test_validate_for_the_cpu_ends_well_without_an_npu(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "CPU self-test passed." in said
    assert "[Linux]" not in said, "what an NPU lacks was not asked"


@pytest.mark.parametrize(("vendor", "first"), [("0x8086", "[FLM]  CPU: "), ("0x1022", "[Linux]  ")])
def test_validate_begins_with_what_models_would_run_on(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    vendor: str,
    first: str,
) -> None:
    make_npu(home, vendor=vendor)
    monkeypatch.setattr(validate, "probe", lambda: probe(home))
    run(["validate"])
    assert capsys.readouterr().out.startswith(first)
    assert run(["validate", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("[FLM]  CPU: ")
    assert ("has an NPU" in said) is (vendor == "0x1022")


def test_check_names_a_damaged_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "hf:o/r"]) == 1
    assert "hf:o/r is not installed" in capsys.readouterr().err
    from flm.hub.reference import resolve

    shelf, model = Shelf(home / "flm"), resolve("hf:o/r")
    file = shelf.make_folder(model) / "source" / "a.gguf"
    file.parent.mkdir()
    file.write_text("whole")
    shelf.record(model, [file])
    assert run(["check", "hf:o/r"]) == 0
    file.write_text("WHOLE")
    capsys.readouterr()
    assert run(["check", "hf:o/r"]) == 1
    assert capsys.readouterr().err == (
        "[ERROR]  a.gguf of hf:o/r is damaged.\n         flm pull hf:o/r --force fetches it again\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pull"], "Missing argument"),
        (["pull", "a", "b"], "extra argument"),
        (["list", "--sideways"], "--sideways"),
        (["list", "--filter", "some"], "--filter is 'some'"),
        (["pull", "x", "--log-level", "loud"], "--log-level is 'loud'"),
        (["run", "smollm2", "Hi", "--device", "npu"], "The NPU cannot be used. "),
        (["bench", "smollm2", "--plot", "a.png"], "--plot draws SVG"),
        (["port", "--config", "none.toml"], "none.toml cannot be read"),
    ],
)
def test_every_slip_is_two_lines_and_exit_code_1(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 1
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert len(lines) == 2, err
    assert lines[0].startswith("[ERROR]  ")
    assert said in lines[0]


def test_a_mistake_of_ours_shows_no_traceback_unless_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(_: object) -> None:
        raise KeyError("gone")

    monkeypatch.setattr(Shelf, "installed", stumble)
    assert run(["list"]) == 1
    assert "flm made a mistake: KeyError: 'gone'" in capsys.readouterr().err
    with pytest.raises(KeyError):
        run(["list", "--log-level", "debug"])


@pytest.mark.parametrize("words", [["help"], ["-h"], ["help", "pull"], ["pull", "--help"]])
def test_help_explains_and_ends_well(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    out = capsys.readouterr().out
    assert "Usage: flm" in out
    if "pull" in words:
        assert "--force" in out
    else:
        assert all(command in out for command in COMMANDS)


def test_nothing_at_all_gets_help_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 1
    assert "Usage: flm" in capsys.readouterr().out


def test_words_of_the_prefix_cache_reach_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []
    monkeypatch.setattr("flm.cli.serve._serve", lambda model, settings: seen.append(settings))
    flags = "--reuse-prompt off --read-ahead off --prefix-shared --prefix-disk-path ~/kept"
    assert run(["serve", *flags.split(), "smollm2:135m"]) == 0
    assert run(["serve", "smollm2:135m"]) == 0
    given, usual = seen
    assert (given.reuse_prompt, given.read_ahead, given.prefix_shared) == (False, False, True)
    assert given.prefix_disk_path == Path.home() / "kept"
    assert (usual.reuse_prompt, usual.read_ahead, usual.prefix_shared) == (True, True, False)


def test_a_speech_model_is_told_to_be_lacking(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "--asr", "1"]) == 1
    assert "--asr asks for a speech model, which flm cannot run yet" in capsys.readouterr().err
    assert run(["run", str(mine), "--asr", "1", "hello"]) == 1  # for it is no model, too
    assert "--asr is ignored: flm cannot run a speech model yet" in capsys.readouterr().err

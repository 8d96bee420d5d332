"""What the docs say is so: settings, links, options and examples."""

import re
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest
import typer.main

from flm.cli.app import COMMANDS, command_line
from flm.cli.drawing import abilities
from flm.core.picture import Picture, Sight
from flm.engine.reader import Reader
from flm.models.cards import VISION, Card, cards
from flm.models.minicpmv import tower as minicpmv
from flm.models.qwen25vl import tower as qwen25vl
from flm.models.qwen35 import tower as qwen35
from flm.settings import FIELDS, Settings, expected, key, load_settings
from flm.text.sight import views

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WRITTEN = {".py", ".md", ".toml", ".cc", ".hpp", ".json", ".jsonl", ".jinja", ".svg"}
AIECC = ("input", "kernel-name", "instance-name", "kernel-id")
README_LINES_MAX = 80
SHOWN = {None: "automatic", True: "1", False: "0", (): "none"}


def test_every_setting_stands_in_the_docs_as_it_is() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    for name, field in FIELDS.items():
        default = "~/.config/flm" if field.default is MISSING else field.default
        if default is True and "choices" in field.metadata:
            default = "on"
        default = SHOWN.get(default, default)
        row = f"| `{key(name)}` | {default} | {expected(name)} | {field.metadata['help']} |"
        assert row in page, row


def test_the_file_of_settings_in_the_docs_is_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    (said,) = re.findall(r"^```toml\n(.*?)^```$", page, re.M | re.S)
    (tmp_path / "flm.toml").write_text(said)
    settings = load_settings(config=tmp_path / "flm.toml", environ={})
    assert (settings.ctx_len, settings.lanes) == (16384, 2)


WRITERS = [card for card in cards() if not card.embeds]


@pytest.mark.parametrize("card", WRITERS, ids=lambda card: card.tag)
def test_what_a_kept_prompt_costs_is_what_the_card_comes_to(card: Card) -> None:
    assert card.row_values
    half = 2 * card.row_values
    state = f"{card.state_bytes / 2**20:.1f} MiB" if card.state_bytes else "none"
    prompt = f"{(14_000 * half + card.state_bytes) / 2**20:,.0f} MiB"
    row = f"| {card.tag} | {half / 1024:g} KiB | {half / 512:g} KiB | {state} | {prompt} |"
    assert row in (ROOT / "docs" / "prefix-cache.md").read_text(), row


def test_the_catalogue_in_the_docs_is_that_of_the_cards() -> None:
    rows = [
        f"| [{card.tag}]({card.url}) | {card.parameter_size} {card.quantization} "
        f"| {card.footprint_gb:.2f} GB | {card.context_length:,} of {card.context_length_max:,} "
        f"| {abilities([*card.labels, *([VISION] if card.sees else [])], card.thinks) or '–'} |"
        for card in cards()
    ]
    page = (ROOT / "docs" / "models.md").read_text()
    shown = [line for line in page.splitlines() if re.match(r"\| \[[^]]+:[^]]+\]\(http", line)]
    assert shown == rows, "\n".join(["docs/models.md must say:", *rows])


def sight(
    kind: str, patch: int, merge: int, side: int, low: int, high: int, slices: int = 1
) -> Sight:
    marks = {"placeholder": "<i>", "mark": "<i>"}
    return Sight(kind, patch, merge, side, low, high, **marks, slices=slices)


# As published, and as docs/pictures.md heads its columns.
SIGHTS = {
    "Qwen3.5": sight("cells", 16, 2, 48, qwen35.PIXELS_MIN, qwen35.PIXELS_MAX),
    "Qwen2.5-VL": sight("windows", 14, 2, 8, qwen25vl.PIXELS_MIN, qwen25vl.PIXELS_MAX),
    "Gemma 3": sight("square", 14, 4, 64, 896**2, 896**2),
    "MiniCPM-V 4.6": sight("slices", 14, 4, 70, 0, minicpmv.PIXELS**2, minicpmv.SLICES),
}


def test_what_a_picture_costs_is_what_the_docs_say() -> None:
    page = (ROOT / "docs" / "pictures.md").read_text()
    sizes = re.findall(r"^\| (\d+) by (\d+) \|", page, re.M)
    assert len(sizes) == 5
    rows = ["| picture | " + " | ".join(SIGHTS) + " |"]
    for width, height in sizes:
        grey = Picture(int(width), int(height), b"\x80" * (3 * int(width) * int(height)))
        costs = []
        for each in SIGHTS.values():
            seen = Reader("it", Settings(), each).seen(grey, "it")
            costs.append(sum(view.rows * view.columns for view in views(seen, each, 0)))
        cells = " | ".join(f"{cost:,}" for cost in costs)
        rows.append(f"| {width} by {height} | {cells} |")
    for row in rows:
        assert row in page, "\n".join(["docs/pictures.md must say:", *rows])


def options(command: Any) -> set[str]:
    """Of a command and all below it."""
    inner = [options(each) for each in getattr(command, "commands", {}).values()]
    return set().union(*inner, *(option.opts for option in command.params))


def test_every_option_the_docs_name_exists() -> None:
    known = {"--help", *options(typer.main.get_command(command_line(COMMANDS)))}
    known |= {"--ulimit", "--provider", "--auth-type"}  # docker's, pi's, Qwen Code's
    known |= {"--only", "--model", "--rounds"}  # of benchmarks
    known |= {f"--xclbin-{name}" for name in AIECC}
    for page in PAGES:
        if page.name == "design.md":
            continue
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text()):
            assert option in known, f"{page.name}: {option}"


def test_every_test_the_docs_name_exists() -> None:
    for page in PAGES:
        for file, name in re.findall(r"`(test_\w+\.py)::(test_\w+)`", page.read_text()):
            (path,) = (ROOT / "tests").rglob(file)
            assert f"def {name}(" in path.read_text(), f"{page.name}: {file}::{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_two_commands_stand_at_the_top_of_the_readme() -> None:
    top = (ROOT / "README.md").read_text().splitlines()[:6]
    assert any(line.startswith("make serve") for line in top)
    assert any(line.startswith("make test") for line in top)


def test_the_readme_is_read_in_a_minute() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX


def test_no_page_or_source_names_a_place_of_one_machine() -> None:
    places = re.compile("/(" + "|".join(("work", "ro" + "ot", "farm")) + ")/")
    folders = [ROOT / each for each in ("docs", "flm", "bench", "models", "npu_kernels", "tests")]
    for path in [*PAGES, *(each for folder in folders for each in folder.rglob("*"))]:
        assert not path.is_symlink() or not places.search(f"{path.readlink()}/"), path
        if path.suffix in WRITTEN:
            assert not places.search(path.read_text()), path

"""What is kept as a terminal shows it: each part where its tokens lie, and no line too long."""

import os
import re
import shutil
from typing import Any

import pytest

from flm.cli.bench import Measured, drawn
from flm.cli.kept import HEAVY, LIGHT, TRACK, draw_gain, draw_tree
from flm.core.event import Usage

TOTALS = {
    "slots_own": 3,
    "bytes_own": 2**22,
    "bytes_kept": 2**22,
    "bytes_max": 2**23,
    "disk_bytes": 2**20,
    "disk_bytes_max": 2**30,
    "disk_slots_own": 1,
}


def stretch(above: int | None, start: int, end: int, kind: str | None, **more: Any) -> Any:
    kept = {"bytes_own": 2**20, "bytes_shared": 2**21, "hits": 2, "idle_s": 61, "awaited_s": None}
    known = {"above": above, "start": start, "end": end, "kind": kind, "tiers": ["host"]}
    return {**known, "leases": 0, **kept, **more}


def reply(*tree: Any) -> dict[str, Any]:
    return {
        "model": "tiny:1m",
        "tree": list(tree),
        "totals": TOTALS,
        "truncated": False,
        "volatility": [],
    }


FORKED = reply(
    stretch(None, 0, 12, None, tiers=[]),
    stretch(0, 12, 24, "turn", text="said\nso " * 40),
    stretch(0, 12, 18, "head", awaited_s=5),
    stretch(1, 24, 48, "end", tiers=["host", "disk"]),
)


def track(line: str) -> tuple[int, int]:
    """Where in a line its tokens begin and end."""
    bar = line[:TRACK].rstrip()
    assert set(bar) <= {HEAVY, LIGHT}
    return bar.count(LIGHT), len(bar)


def test_each_part_lies_where_its_tokens_do_and_below_what_leads_to_it() -> None:
    lines = [line for line in draw_tree(FORKED).splitlines() if " … " in line]
    assert [track(line) for line in lines] == [(0, 6), (6, 12), (12, 24), (6, 9)]
    names = [re.sub(r"^\W+", "", line[TRACK:]).split("  ")[0] for line in lines]
    assert names == ["0 … 12", "12 … 24", "24 … 48", "12 … 18"]
    assert "├ 12" in lines[1]
    assert "│ └ 24" in lines[2]
    assert "└ 12" in lines[3]
    assert "host+disk" in lines[2]
    assert "wanted 1 min ago, awaited for 5 s" in lines[3]


def test_the_room_is_a_bar_in_proportion() -> None:
    memory, disk = draw_tree(FORKED).splitlines()[1:3]
    assert (memory.count(HEAVY), memory.count(LIGHT)) == (TRACK // 2, TRACK // 2)
    assert disk.count(HEAVY) == 1, "what is not nothing is seen"
    assert "4.0 MiB of 8.0 MiB" in memory
    assert "1 snapshot" in disk


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_no_line_is_wider_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    size = os.terminal_size((columns, 40))
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: size)
    plain = re.sub(r"\x1b\[[\d;]*m", "", draw_tree(FORKED))
    lines = plain.splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) == 3 + 1 + len(FORKED["tree"]) + 1
    assert ("used" in plain) == (columns == 140)


def test_the_gain_of_a_prompt_is_a_bar_and_its_numbers() -> None:
    line = draw_gain(Usage(300, 200, 101, 0.1, 0.4, 2.0))
    assert "200 of 300 kept · 101 written · first token 0.50 s · 50.0 tok/s" in line
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("lengths", [[512], [4096, 2048, 1024]])
def test_a_plot_has_a_dot_for_every_length_in_every_panel(lengths: list[int]) -> None:
    from xml.etree import ElementTree

    rows = [(length, [Measured(length / 500, 400, 60), Measured(9, 380, 50)]) for length in lengths]
    picture = ElementTree.fromstring(drawn("a <model> on cpu", rows))
    svg = "{http://www.w3.org/2000/svg}"
    width, height = map(float, picture.attrib["viewBox"].split()[2:])
    dots = picture.findall(f"{svg}circle")
    assert len(dots) == 3 * len(lengths)
    for dot in dots:
        assert 0 < float(dot.attrib["cx"]) < width
        assert 0 < float(dot.attrib["cy"]) < height
    texts = [each.text for each in picture.findall(f"{svg}text")]
    assert texts[0] == "a <model> on cpu"
    wanted = [f"{length:,}" for length in sorted(lengths)]
    assert [text for text in texts if text in wanted] == wanted * 3

"""What is kept of prompts, drawn for a terminal as the page draws it: where each part lies, what it
takes, and how much of one prompt was kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flm.cli.drawing import changes, columns, drawn, fitted, mib, one_line, span
from flm.core.event import Usage
from flm.core.sizes import counted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

TRACK, TRACK_NARROW = 24, 12  # characters that a whole prompt takes
WIDE = 110  # columns of a terminal; in fewer, less is shown
RIGHT = (False, False, False, True, True, True, False)  # which columns end at the same place
KEPT, READ, WRITTEN = "cyan", "yellow", "blue"
HEAVY, LIGHT = "━", "─"


def draw_tree(reply: Mapping[str, Any]) -> str:
    """A reply of GET /v1/prefix-cache."""
    from rich.text import Text

    heading = Text(f"{reply['model']}: {_snapshots(reply['totals'])}")
    lines: list[RenderableType] = [heading, *_rooms(reply["totals"])]
    if reply["tree"]:
        lines += ["", *_lines(reply["tree"])]
    if reply["truncated"]:
        lines.append("… and more")
    return drawn(*lines, *changes(reply["volatility"]))


def draw_gain(usage: Usage) -> str:
    """One line: how much of the prompt was kept, and what the rest took."""
    from rich.text import Text

    read = usage.prompt_tokens - usage.cached_tokens
    parts = ((usage.cached_tokens, KEPT), (read, READ), (usage.completion_tokens, WRITTEN))
    line = _bar(parts, sum(tokens for tokens, _ in parts), TRACK_NARROW)
    said = [
        f"{usage.cached_tokens:,} of {usage.prompt_tokens:,} kept",
        f"{usage.completion_tokens:,} written",
        f"first token {usage.queue_s + usage.prefill_s:.2f} s",
    ]
    if usage.written_per_s:
        said.append(f"{usage.written_per_s:.1f} tok/s")
    return drawn(Text.assemble(line, Text("  " + " · ".join(said), style="dim")))


def _snapshots(totals: Mapping[str, Any]) -> str:
    said = counted(totals["slots_own"], "snapshot")
    if totals["bytes_kept"] > totals["bytes_own"]:
        said += f" of {mib(totals['bytes_own'])}, and others'"
    return said


def _rooms(totals: Mapping[str, Any]) -> "Iterator[Text]":
    from rich.text import Text

    rooms = [("memory", totals["bytes_kept"], totals["bytes_max"], "")]
    if most := totals["disk_bytes_max"]:
        here = counted(totals["disk_slots_own"], "snapshot")
        rooms.append(("disk", totals["disk_bytes"], most, f", {here} of these"))
    for name, taken, most, more in rooms:
        bar = _bar([(taken, KEPT), (most - taken, "dim")], most, TRACK, marks=HEAVY + LIGHT)
        yield fitted(Text.assemble(f"{name:<8}", bar, f"  {mib(taken)} of {mib(most)}{more}"))


def _lines(stretches: Sequence[Mapping[str, Any]]) -> "Iterator[Text]":
    """One for each stretch, in columns, and one for its text if it is there."""
    from rich.text import Text

    wide = columns() >= WIDE
    track = TRACK if wide else TRACK_NARROW
    longest = max(stretch["end"] for stretch in stretches)
    ordered = _in_order(stretches)
    rows = [_row(stretch, guide, wide=wide) for stretch, guide in ordered]
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    for (stretch, guide), row in zip(ordered, rows, strict=True):
        start, end = stretch["start"], stretch["end"]
        parts = [(start, "dim"), (end - start, KEPT), (longest - end, "")]
        line = _bar(parts, longest, track, marks=LIGHT + HEAVY + " ")
        for cell, width, right in zip(row, widths, RIGHT, strict=False):
            cell.align("right" if right else "left", width)
            line = Text("  ").join([line, cell])
        yield fitted(line)
        if text := stretch.get("text"):
            below = " " * (track + 2 + len(guide) + 2)
            yield fitted(Text(below + one_line(text), style="italic dim"))


def _in_order(stretches: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str]]:
    """Each after what leads to it, with the lines that lead there."""
    below: dict[int | None, list[int]] = {}
    for index, stretch in enumerate(stretches):
        below.setdefault(stretch["above"], []).append(index)
    found = []
    waiting = [(index, "", "") for index in reversed(below.get(None, []))]
    while waiting:
        index, mine, theirs = waiting.pop()
        found.append((stretches[index], mine))
        inner = below.get(index, [])
        for place, each in reversed(list(enumerate(inner))):
            last = place == len(inner) - 1
            guides = ("└ ", "  ") if last else ("├ ", "│ ")
            waiting.append((each, theirs + guides[0], theirs + guides[1]))
    return found


def _row(stretch: Mapping[str, Any], guide: str, *, wide: bool) -> "list[Text]":
    from rich.text import Text

    kind = stretch["kind"]
    what = Text.assemble((guide, "dim"), f"{stretch['start']:,} … {stretch['end']:,}")
    if kind is None:
        word = Text("in use" if stretch["leases"] else "shared", style="dim")
        row = [what, word, *(Text() for _ in range(5))]
    else:
        row = [
            what,
            Text(kind, style="bold"),
            Text("+".join(stretch["tiers"]), style=KEPT),
            Text(f"{mib(stretch['bytes_own'])} own"),
            Text(f"{mib(stretch['bytes_shared'])} shared"),
            Text(f"{stretch['hits']}× used", style="dim"),
            Text(_ages(stretch), style="dim"),
        ]
    return row if wide else row[:-2]


def _ages(stretch: Mapping[str, Any]) -> str:
    ages = []
    if stretch["idle_s"] is not None:
        ages.append(f"wanted {span(stretch['idle_s'])} ago")
    if stretch["awaited_s"] is not None:
        ages.append(f"awaited for {span(stretch['awaited_s'])}")
    return ", ".join(ages)


def _bar(
    parts: Sequence[tuple[float, str]], whole: float, width: int, marks: str = HEAVY
) -> "Text":
    """Parts in proportion, each in its colour; what is not nothing is seen."""
    from rich.text import Text

    bar, shown, passed = Text(), 0, 0.0
    for number, (part, style) in enumerate(parts):
        passed += part
        end = round(width * passed / whole) if whole else 0
        long = min(max(end - shown, part > 0), width - shown)
        bar.append(marks[min(number, len(marks) - 1)] * long, style=style)
        shown += long
    return bar

"""What commands answer as a person reads it: in colour and as wide as the terminal, or plain."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from flm.core.sizes import MIB, counted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

PLAIN_COLUMNS = 120
LOST = ("evicted", "never captured")  # classes where nothing differs


def draw_explanation(reply: Mapping[str, Any]) -> str:
    from rich.panel import Panel
    from rich.text import Text

    reused, tokens = reply["would_reuse"], reply["prompt_tokens"]
    where = f" from {reused['tier']}" if reused["tier"] else ""
    said = Text(f"{reused['tokens']:,} of {counted(tokens, 'token')} would be reused{where}.\n")
    for each in reply["boundaries"]:
        said.append(f"  {each['kind']:<6} at {each['offset']:>7,}  ")
        said.append(f"{each['kept'] or 'not kept'}\n", style="" if each["kept"] else "dim")
    if reply["class"]:
        said.append_text(_difference(reply))
        if fate := reply["fate"]:
            said.append(f"At {fate['offset']:,}: {fate['what']}\n")
        said.append(f"Fix: {reply['advice']}\n", style="bold")
    else:
        read = reply["prompt_tokens"] - reply["would_reuse"]["tokens"]
        said.append(f"\n{_nothing_to_explain(read, reply['would_reuse']['tokens'])}\n")
    said.rstrip()
    return drawn(Panel(said, title=reply["model"]), *changes(reply["volatility"]))


def _difference(reply: Mapping[str, Any]) -> "Text":
    from rich.text import Text

    said, at, place = Text("\n"), reply["differs_at"], reply["place"]
    if reply["class"] in LOST:
        return said.append(_lost(at, reply["read"], reply["would_reuse"]["tokens"]))
    said.append(f"It parts from an earlier prompt at token {at:,}: ")
    said.append(f"{reply['class']}", style="bold")
    said.append(f", {place['path']} +{place['offset']}\n")
    for name, text, style in (("earlier", "theirs", "red"), ("now", "ours", "green")):
        said.append(f"  {name:<7}  …" + one_line(reply["before"]))
        said.append(one_line(reply[text]) + "\n", style=style)
    return said


def _lost(seen: int, read: int, kept: int) -> str:
    tokens = f"{counted(seen, 'token')} of it were"
    if read < seen:
        was, left = (f"{count:,}" if count else "none" for count in (read, kept))
        return f"{tokens} seen before, {was} of them read, {left} kept.\n"
    return f"{tokens} read before, and {f'{kept:,} are' if kept else 'are not'} kept.\n"


def draw_models(entries: Sequence[Mapping[str, Any]]) -> str:
    """Entries of flm list --json."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    widest_tag = max((len(e["name"]) for e in entries if e["memory"]), default=None)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("model", "", "disk", "memory + kept", "fits", "context", "can"):
        right = name in ("disk", "memory + kept", "context")
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=name not in ("model", "can"),
            overflow="fold",
            min_width=widest_tag if name == "model" else None,
        )
    for entry in entries:
        memory = entry["memory"]
        table.add_row(
            Text(entry["name"]),
            "✅" if entry["installed"] else "⏬",
            f"{entry['footprint']:.2f} GB",
            _taken_and_kept(memory) if memory else "?",
            _fits(memory).removeprefix("with ") if memory else "?",
            f"{memory['context_length']:,}" if memory else "?",
            abilities(entry["label"], entry["details"].get("think", False)),
        )
    lines: list[RenderableType] = [table]
    machine = next((e["memory"]["machine_bytes"] for e in entries if e["memory"]), None)
    if machine is not None:
        said = (
            "memory: weights and all lanes at this context length; kept: prompts and parked lanes, "
            f"up to so much of what is left of this machine's {_gib(machine)}"
        )
        lines.append(Text(said, style="dim"))
    return drawn(*lines)


def what_it_takes(entry: Mapping[str, Any]) -> str:
    """An entry of flm list --json, in words."""
    disk, memory = f"{entry['footprint']:.2f} GB", entry["memory"]
    if not memory:
        return disk
    fits = {"yes": "fits", "no": "does not fit"}.get(_fits(memory), f"fits {_fits(memory)}")
    kept = _gives_way(memory)
    besides = f" and up to {_gib(kept)} of kept prompts" if kept else ""
    return f"{disk}, {_taken(memory)} in memory{besides}, {fits}"


def _taken(memory: Mapping[str, Any]) -> str:
    """That has to be there, which is what fits or does not."""
    return _gib(memory["total_bytes"] - _gives_way(memory))


def _taken_and_kept(memory: Mapping[str, Any]) -> str:
    kept = _gives_way(memory)
    return _taken(memory).replace(" ", f" + {kept / 2**30:.1f} ") if kept else _taken(memory)


def _gives_way(memory: Mapping[str, Any]) -> int:
    """Kept prompts and parked lanes, which take what is left."""
    return int(memory["prefix_cache_bytes"] + memory["parked_bytes"])


def _fits(memory: Mapping[str, Any]) -> str:
    if memory["fits"]:
        return "yes"
    shorter = memory["context_length_that_fits"]
    return f"with --ctx-len {shorter}" if shorter else "no"


def abilities(labels: Sequence[str], thinks: bool) -> str:
    words = []
    if "reasoning" in labels:
        words.append("thinks" if thinks else "thinks if asked")
    if "tool-calling" in labels:
        words.append("tools")
    if "vision" in labels:
        words.append("sees")
    if "embeddings" in labels:
        words.append("makes embeddings")
    return ", ".join(words)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _nothing_to_explain(read: int, reused: int) -> str:
    if read == 0:
        return "Nothing would be read."
    if reused > read:
        return f"What would be read, {counted(read, 'token')}, is new."
    return (
        "No prompt that goes on like this was read since the server started,\n"
        "or it keeps none (--reuse-prompt off)."
    )


def changes(rows: Sequence[Mapping[str, Any]]) -> "list[RenderableType]":
    """The volatility map: what changes at the beginning of prompts."""
    from rich.text import Text

    lines: list[RenderableType] = []
    for row in rows:
        line = Text(f"{row['place']} +{row['offset']} changes ({row['class']}), ")
        line.append(f"{row['times']}× in {counted(row['requests'], 'request')}: ")
        line.append(row["advice"], style="bold")
        lines.append(line)
    return lines


def columns() -> int:
    """Of the terminal, or of what is written to none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PLAIN_COLUMNS


def fitted(line: "Text") -> "Text":
    """No longer than the terminal."""
    line.rstrip()
    if sys.stdout.isatty():
        line.truncate(columns(), overflow="ellipsis")
    return line


def drawn(*renderables: "RenderableType") -> str:
    """In colour and as wide as the terminal, or plain where there is none."""
    from rich.console import Console

    to = StringIO()
    terminal = sys.stdout.isatty()
    console = Console(file=to, force_terminal=terminal, width=columns(), highlight=False)
    for each in renderables:
        console.print(each, soft_wrap=not terminal)
    return to.getvalue()


def one_line(text: str) -> str:
    return text.replace("\n", "⏎")


def mib(size: int) -> str:
    return f"{size / MIB:,.1f} MiB"


def span(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"

"""Replies of the prefix cache, and the models, as a person reads them: a tree, a panel, a table."""

import sys
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from flm.core.sizes import MIB, counted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


def draw_tree(reply: Mapping[str, Any]) -> str:
    from rich.tree import Tree

    root = Tree(_totals(reply["totals"], reply["model"]), guide_style="dim")
    branches: list[Tree] = []
    for stretch in reply["tree"]:
        above = root if stretch["above"] is None else branches[stretch["above"]]
        branches.append(above.add(_stretch(stretch)))
    if reply["truncated"]:
        root.add("… and more")
    return _drawn(root, *_changes(reply["volatility"]))


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
        place = reply["place"]
        said.append(f"\nIt parts from an earlier prompt at token {reply['differs_at']:,}: ")
        said.append(f"{reply['class']}", style="bold")
        said.append(f", {place['path']} +{place['offset']}\n")
        said.append("  earlier  …" + _one_line(reply["before"]))
        said.append(_one_line(reply["theirs"]) + "\n", style="red")
        said.append("  now      …" + _one_line(reply["before"]))
        said.append(_one_line(reply["ours"]) + "\n", style="green")
        if fate := reply["fate"]:
            said.append(f"At {fate['offset']:,}: {fate['what']}\n")
        said.append(f"Fix: {reply['advice']}\n", style="bold")
    else:
        read = reply["prompt_tokens"] - reply["would_reuse"]["tokens"]
        said.append(f"\n{_nothing_to_explain(read, reply['would_reuse']['tokens'])}\n")
    said.rstrip()
    return _drawn(Panel(said, title=reply["model"]), *_changes(reply["volatility"]))


def draw_models(entries: Sequence[Mapping[str, Any]]) -> str:
    """Entries of flm list --json."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    widest_tag = max((len(e["name"]) for e in entries if e["memory"]), default=None)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("model", "", "disk", "memory", "fits", "context", "can"):
        right = name in ("disk", "memory", "context")
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
            _taken(memory) if memory else "?",
            _fits(memory) if memory else "?",
            f"{memory['context_length']:,}" if memory else "?",
            abilities(entry["label"], entry["details"].get("think", False)),
        )
    lines: list[RenderableType] = [table]
    machine = next((e["memory"]["machine_bytes"] for e in entries if e["memory"]), None)
    if machine is not None:
        taken = (
            "weights and all lanes at this context length; kept prompts take some of what is left"
        )
        lines.append(Text(f"memory: {taken} of this machine's {_gib(machine)}", style="dim"))
    return _drawn(*lines)


def what_it_takes(entry: Mapping[str, Any]) -> str:
    """An entry of flm list --json, in words."""
    disk, memory = f"{entry['footprint']:.2f} GB", entry["memory"]
    if not memory:
        return disk
    fits = {"yes": "fits", "no": "does not fit"}.get(_fits(memory), f"fits {_fits(memory)}")
    return f"{disk}, {_taken(memory)} in memory, {fits}"


def _taken(memory: Mapping[str, Any]) -> str:
    """Without kept prompts, which take what is left."""
    return _gib(memory["total_bytes"] - memory["prefix_cache_bytes"])


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


def _totals(totals: Mapping[str, Any], model: str) -> str:
    line = (
        f"{model}: {counted(totals['slots_own'], 'snapshot')}, {_mib(totals['bytes_own'])} of "
        f"{_mib(totals['bytes_max'])} in memory"
    )
    if totals["bytes_kept"] > totals["bytes_own"]:
        line += f" ({_mib(totals['bytes_kept'])} with others')"
    if totals["disk_bytes_max"]:
        line += (
            f"\n{totals['disk_slots_own']:,} of them on disk, which holds "
            f"{_mib(totals['disk_bytes'])} of {_mib(totals['disk_bytes_max'])} in all"
        )
    return line


def _stretch(stretch: Mapping[str, Any]) -> "Text":
    from rich.text import Text

    line = Text(f"{stretch['start']:,} … {stretch['end']:,}  ")
    if stretch["kind"] is None:
        line.append("shared" if not stretch["leases"] else "in use", style="dim")
    else:
        line.append(stretch["kind"], style="bold")
        line.append(f"  {'+'.join(stretch['tiers'])}  ", style="cyan")
        line.append(f"{_mib(stretch['bytes_own'])} own, {_mib(stretch['bytes_shared'])} shared")
        line.append(f"  {stretch['hits']}× used  {_ages(stretch)}", style="dim")
    if stretch.get("text"):
        line.append(f"  {_one_line(stretch['text'])}", style="italic dim")
    return line


def _ages(stretch: Mapping[str, Any]) -> str:
    ages = [
        f"{what} {_span(stretch[key])} ago"
        for what, key in (("kept", "age_s"), ("wanted", "idle_s"))
        if stretch[key] is not None
    ]
    if stretch["awaited_s"] is not None:
        ages.append(f"awaited for {_span(stretch['awaited_s'])}")
    return ", ".join(ages)


def _changes(rows: Sequence[Mapping[str, Any]]) -> "list[RenderableType]":
    """The volatility map: what changes at the beginning of prompts."""
    from rich.text import Text

    lines: list[RenderableType] = []
    for row in rows:
        line = Text(f"{row['place']} +{row['offset']} changes ({row['class']}), ")
        line.append(f"{row['times']}× in {counted(row['requests'], 'request')}: ")
        line.append(row["advice"], style="bold")
        lines.append(line)
    return lines


def _drawn(*renderables: "RenderableType") -> str:
    """In colour and as wide as the terminal, or plain where there is none."""
    from rich.console import Console

    to = StringIO()
    terminal = sys.stdout.isatty()
    console = Console(file=to, force_terminal=terminal, width=None if terminal else 120)
    for each in renderables:
        console.print(each, soft_wrap=not terminal)
    return to.getvalue()


def _one_line(text: str) -> str:
    return text.replace("\n", "⏎")


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f} MiB"


def _span(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"

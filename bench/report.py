"""docs/benchmarks.md, from the newest rows of bench/results: `python -m bench.report`.

A picture, the command that measured it, and where: one section each. `make bench-report` measures
first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.readme import every, newest
from bench.rows import ROOT

PAGE, PICTURES = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks"
FLM, PEER = "#2a7de1", "#d08a3c"
POLICIES = ("pinning", "density", "flm", "lru", "gdsf", "marconi")
LOADS = ("agents, 6 sharing", "hermes", "chats")
VERSIONS = ("python", "onnxruntime", "numpy", "xllamacpp")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Section:
    name: str  # of its picture
    title: str
    text: str
    command: str
    draw: Callable[[Figure], Row]  # gives a row that it was drawn from


def lengths(figure: Figure) -> Row:
    rows = newest("chat")
    found = sorted(int(name.split()[2].strip(",")) for name in rows if name.endswith(", cold"))
    axes = _axes(figure, "tokens of the prompt", "seconds to the first token")
    for kind, line in (("cold", "-"), ("warm", "--")):
        for side, colour, label in (("flm", FLM, "flm"), ("llama_cpp", PEER, "llama.cpp")):
            values = [rows[f"TTFT of {length}, {kind}"][side] for length in found]
            axes.plot(found, values, line, color=colour, marker="o", label=f"{label}, {kind}")
    axes.set_yscale("log")
    axes.legend(frameon=False)
    return rows[f"TTFT of {found[0]}, cold"]


def agents(figure: Figure) -> Row:
    rows = newest("agents")
    row = rows["smollm2: later turns TTFT, 6 slots"]
    axes = _axes(figure, "request, in order", "seconds to the first token")
    for side, colour, label in (("llama_cpp", PEER, "llama.cpp"), ("flm", FLM, "flm")):
        axes.plot(row[f"{side}_later_s"], color=colour, label=label)
    axes.legend(frameon=False)
    return row


def policies(figure: Figure) -> Row:
    rows = _by_policy()
    loads = [load for load in LOADS if load in rows]
    for place, load in enumerate(loads, start=1):
        axes = figure.add_subplot(1, len(loads), place)
        _plain(axes, "GiB", "tokens not read" if place == 1 else "")
        for policy, row in rows[load].items():
            axes.plot(row["gib"], row[policy], marker=".", label=policy)
        axes.set_xscale("log", base=2)
        axes.set_xticks(row["gib"], [str(each) for each in row["gib"]])
        axes.set_title(load, fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    return row


def families(figure: Figure) -> Row:
    rows = newest("families")
    names = [name.replace(" Q4_K_M", "") for name in rows]
    axes = _axes(figure, "", "flm, of llama.cpp's speed")
    for shift, what in ((-0.2, "prefill"), (0.2, "decode")):
        heights = [row[f"{what}_ratio"] for row in rows.values()]
        places = [place + shift for place in range(len(names))]
        axes.bar(places, heights, 0.38, color=FLM if what == "prefill" else PEER, label=what)
    axes.axhline(1, color="#555555", linewidth=1)
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=8)
    axes.legend(frameon=False)
    return list(rows.values())[-1]


def pictures(figure: Figure) -> Row:
    rows = {name: row for name, row in newest("pictures").items() if name.startswith("encoded ")}
    names = [name.removeprefix("encoded ").replace(", ", "\n") for name in rows]
    axes = _axes(figure, "", "seconds to encode a picture")
    for shift, side, colour, label in (
        (-0.2, "flm", FLM, "flm"),
        (0.2, "llama_cpp", PEER, "llama.cpp"),
    ):
        heights = [row[f"{side}_s"] for row in rows.values()]
        axes.bar(
            [place + shift for place in range(len(rows))], heights, 0.38, label=label, color=colour
        )
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.legend(frameon=False)
    return list(rows.values())[-1]


SECTIONS = (
    Section(
        "lengths",
        "A prompt, cold and kept",
        "SmolLM2-135M Q4_1. Warm: all but the last 64 tokens were read before.",
        "python -m bench.chat --only lengths",
        lengths,
    ),
    Section(
        "agents",
        "Six agents over time",
        "Later turns of six agents with tools, ten turns each, on SmolLM2-135M.",
        "python -m bench.agents --model smollm2",
        agents,
    ),
    Section(
        "policies",
        "What a budget is worth, by policy",
        "The share of prompt tokens that need no reading, simulated over recorded and made-up "
        "traffic; `pinning` is the default. Policies that were compared and are no part of flm are "
        "drawn from the last run that had them.",
        "python -m bench.prefix",
        policies,
    ),
    Section(
        "families",
        "Families, beside llama.cpp",
        "Speeds over llama.cpp's, same file of random weights in the sizes of published models; "
        "above the line flm is faster. [Why it is not for "
        "most](models.md#how-fast-beside-llamacpp).",
        "python -m bench.families",
        families,
    ),
    Section(
        "pictures",
        "Pictures, beside llama.cpp",
        "From pixels to rows: a tower of random weights in the sizes of Qwen3.5 0.8B's, the same "
        "mmproj file in F16 and in Q8_0. While it is at work replies go on; llama.cpp's wait.",
        "python -m bench.pictures",
        pictures,
    ),
)


def _by_policy() -> dict[str, dict[str, Row]]:
    """For each load the newest row that has a policy."""
    found: dict[str, dict[str, Row]] = {}
    for row in every("prefix"):
        load, _, what = row["figure"].rpartition(": ")
        if what == "token hit rate":
            known = found.setdefault(load, {})
            known |= {policy: row for policy in POLICIES if policy in row}
    return found


def _axes(figure: Figure, along: str, up: str) -> Axes:
    axes = figure.add_subplot()
    _plain(axes, along, up)
    return axes


def _plain(axes: Axes, along: str, up: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e6ea")
    axes.set_axisbelow(True)
    axes.set_xlabel(along)
    axes.set_ylabel(up)


def where(row: Row) -> str:
    machine = row["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in VERSIONS if name in machine)
    place = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    return f"{row['at'][:10]}, commit {row['commit']}, {place}; {versions}"


def main() -> None:
    mpl.rcParams.update({"svg.hashsalt": "flm", "font.size": 10, "svg.fonttype": "none"})
    PICTURES.mkdir(exist_ok=True)
    lines = [
        "# Benchmarks",
        "",
        "Both servers at once over HTTP, in turns, the same file, as many threads. Ratios carry",
        "over to other machines better than speeds. `make bench-report` measures all this and",
        "writes the page; rows are in [bench/results/](../bench/results/).",
    ]
    for section in SECTIONS:
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        row = section.draw(figure)
        picture = PICTURES / f"{section.name}.svg"
        figure.savefig(picture, metadata={"Date": None})
        lines += [
            "",
            f"## {section.title}",
            "",
            section.text,
            "",
            f"![{section.title}](benchmarks/{picture.name})",
            "",
            f"`{section.command}`: {where(row)}.",
        ]
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

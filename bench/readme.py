"""Writes the figures of the README, docs/models.md and docs/prefix-cache.md, and their pictures,
from the newest rows of bench/results: `python -m bench.readme`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.rows import RESULTS, ROOT

BEGIN, END = (
    "<!-- figures: written by python -m bench.readme from bench/results -->",
    "<!-- /figures -->",
)
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 300, 60, 48, 44, 130
COLOURS = {"cold": "#b0b7bf", "llama_cpp": "#d08a3c", "flm": "#2a7de1"}
NAMES = {"cold": "flm, nothing kept", "llama_cpp": "llama.cpp", "flm": "flm"}


@dataclass(frozen=True, slots=True)
class Lines:
    """Seconds, one after the other, of several sides."""

    title: str
    along: str  # what a step to the right is
    seconds: Mapping[str, Sequence[float]]


def newest(bench: str) -> dict[str, dict[str, Any]]:
    """The last row of each figure; none where it never ran."""
    return {row["figure"]: row for row in every(bench)}


def every(bench: str) -> list[dict[str, Any]]:
    """All rows, the oldest first."""
    path = RESULTS / f"{bench}.jsonl"
    return list(map(json.loads, path.read_text().splitlines() if path.exists() else []))


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: what was measured, ours, the peer's, the ratio."""
    shown = {
        "prefill 512": ("cold prompt of 512 tokens", "tok/s"),
        "prefill 2048": ("cold prompt of 2,048 tokens", "tok/s"),
        "decode at 512": ("one stream, after 512 tokens", "tok/s"),
        "four streams, summed decode": ("four streams at once, summed", "tok/s"),
        "second turn TTFT": ("second turn after a 4K prompt, to first token", "s"),
        "conversation TTFT": ("turns 2 to 8 of the chat above, to first token", "s"),
        "identical resend TTFT": ("the same 4K prompt again, to first token", "s"),
    }
    lines = ["| SmolLM2-135M Q4_1 | flm | llama.cpp | ratio |", "|---|---|---|---|"]
    for figure, (what, unit) in shown.items():
        row = rows[figure]
        ours, peer = row["flm"], row["llama_cpp"]
        lines.append(
            f"| {what} | {_round(ours)} {unit} | {_round(peer)} {unit} | {ours / peer:.2f} |"
        )
    machine = rows["conversation TTFT"]["machine"]
    lines.append(
        f"\nBoth servers at once over HTTP, in turns, same file, {machine['cores']} threads each, "
        f"on {machine['cpu']} ({machine['cores']} cores): `make bench`. Ratios carry over to other "
        "machines better than speeds; all rows are in [bench/results/](bench/results/)."
    )
    return "\n".join(lines)


def _round(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def families_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        "| sizes of | types | prompt, flm | llama.cpp | ratio | decode, flm | llama.cpp | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for figure, row in rows.items():
        cells = [f"{row['sizes']}: {row['mib']} MiB", figure.split()[-1]]
        for what in ("prefill", "decode"):
            ours, peer = row[f"{what}_flm"], row[f"{what}_llama_cpp"]
            cells += [_round(ours), _round(peer), f"{ours / peer:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    machine = row["machine"]
    lines.append(
        "\nTokens a second: a cold prompt of 512, then 64 decoded; both servers at once over HTTP, "
        f"in turns, the same file of random weights, {machine['cores']} threads each, on "
        f"{machine['cpu']}: `python -m bench.families`."
    )
    return "\n".join(lines)


def agents_table(agents: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: six agents beside llama.cpp, what was read, and after a restart."""
    lines = ["| to the first token, mean | flm | llama.cpp | ratio |", "|---|---|---|---|"]
    models = {"smollm2": "SmolLM2-135M", "qwen35": "a Qwen3.5 of 0.3B, random weights"}
    for name, model in models.items():
        for row in _peers(agents, name):
            ours, theirs, slots = row["flm"], row["llama_cpp"], row["figure"].split(", ")[-1]
            lines.append(
                f"| {model}, {row['agents']} agents, {row['turns']} turns; llama.cpp with {slots} "
                f"| {_round(ours)} s | {_round(theirs)} s | {row['ratio']:.2f} |"
            )
    lines += ["", "| flm alone | | of | ratio |", "|---|---|---|---|"]
    for name, model in models.items():
        read = _of(agents, f"{name}: tokens read")
        lines.append(
            f"| {model}, tokens read; of those that no cache could have spared | {read['read']:,} "
            f"| {read['unavoidable']:,} | {read['ratio']:.3f} |"
        )
        if f"{name}: first turns after a restart, TTFT" not in agents:
            continue
        warm = _of(agents, f"{name}: first turns after a restart")
        lines.append(
            f"| {model}, first turns after a restart; of the same without a disk "
            f"| {_round(warm['flm'])} s | {_round(warm['cold'])} s | {warm['ratio']:.2f} |"
        )
    machine = read["machine"]
    lines.append(
        f"\n`python -m bench.agents` on {machine['cpu']}, {machine['cores']} cores: all servers at "
        "once, in turns, the same file and threads. Rows in [bench/results/](../bench/results/)."
    )
    return "\n".join(lines)


def _peers(agents: Mapping[str, Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """The newest runs of a model: those with as many agents as the last."""
    found = [row for figure, row in agents.items() if f"{name}: later turns TTFT" in figure]
    return [row for row in found if row["agents"] == found[-1]["agents"]]


def _of(rows: Mapping[str, Mapping[str, Any]], *words: str) -> Mapping[str, Any]:
    """The one whose name has all of these."""
    (found,) = (row for figure, row in rows.items() if all(word in figure for word in words))
    return found


def picture(lines: Lines) -> str:
    """Seconds to the first token, as SVG that reads on light and dark pages."""
    count = len(lines.seconds["flm"])
    most = max(max(values) for values in lines.seconds.values())
    marked = range(0, count, 1 if count <= 12 else 6)
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if most / s <= 6)
    top = step * (int(most / step) + 1)

    def x(turn: float) -> float:
        return LEFT + turn * (WIDTH - LEFT - RIGHT) / (count - 1)

    def y(seconds: float) -> float:
        return HEIGHT - BOTTOM - seconds / top * (HEIGHT - BOTTOM - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" fill="#222">{lines.title}</text>',
    ]
    for line in range(int(top / step) + 1):
        height = y(line * step)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}" '
            'stroke="#e3e6ea"/>'
            f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end" fill="#555">'
            f"{line * step:g}</text>"
        )
    for turn in marked:
        parts.append(
            f'<text x="{x(turn):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle" '
            f'fill="#555">{turn + 1}</text>'
        )
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle" '
        f'fill="#555">{lines.along}</text>'
    )
    for name, values in lines.seconds.items():
        colour = COLOURS[name]
        points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(values))
        end = y(values[-1])
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5" '
            'stroke-linejoin="round"/>'
            f'<text x="{WIDTH - RIGHT + 8}" y="{end + 4:.1f}" fill="{colour}">{NAMES[name]}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def write_between_marks(page: Path, text: str) -> None:
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


def main() -> None:
    chat, agents = newest("chat"), newest("agents")
    title = "Seconds to the first token, by turn: 2K system prompt, 200-token messages"
    turns = chat["conversation TTFT"]["turns"]
    in_order = {name: turns[name] for name in COLOURS}
    (ROOT / "docs" / "ttft.svg").write_text(picture(Lines(title, "turn", in_order)))
    title = "Six agents, SmolLM2: seconds to the first token of each later turn"
    row = _of(agents, "smollm2: later turns", "6 slots")
    seconds = {name: row[f"{name}_later_s"] for name in ("llama_cpp", "flm")}
    (ROOT / "docs" / "agents.svg").write_text(picture(Lines(title, "request", seconds)))
    write_between_marks(ROOT / "README.md", table(chat))
    if families := newest("families"):
        write_between_marks(ROOT / "docs" / "models.md", families_table(families))
    write_between_marks(ROOT / "docs" / "prefix-cache.md", agents_table(agents))


if __name__ == "__main__":
    main()

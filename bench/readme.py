"""Writes the README's figures and docs/ttft.svg from the newest rows of bench/results.

python -m bench.readme
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bench.rows import RESULTS, ROOT

BEGIN, END = (
    "<!-- figures: written by python -m bench.readme from bench/results -->",
    "<!-- /figures -->",
)
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 300, 60, 48, 44, 130
COLOURS = {"cold": "#b0b7bf", "llama_cpp": "#d08a3c", "flm": "#2a7de1"}
NAMES = {"cold": "flm, nothing kept", "llama_cpp": "llama.cpp", "flm": "flm"}


def newest() -> dict[str, dict[str, Any]]:
    """The last row of each figure."""
    lines = (RESULTS / "chat.jsonl").read_text().splitlines()
    return {row["figure"]: row for row in map(json.loads, lines)}


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


def picture(turns: Mapping[str, Sequence[float]]) -> str:
    """Lines of TTFT by turn, as SVG that reads on light and dark pages."""
    count = len(turns["flm"])
    most = max(max(values) for values in turns.values())
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
        f'<text x="{LEFT}" y="24" font-size="15" fill="#222">Seconds to the first token, by turn: '
        "2K system prompt, 200-token messages</text>",
    ]
    for line in range(int(top / step) + 1):
        height = y(line * step)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}" '
            'stroke="#e3e6ea"/>'
            f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end" fill="#555">'
            f"{line * step:g}</text>"
        )
    for turn in range(count):
        parts.append(
            f'<text x="{x(turn):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle" '
            f'fill="#555">{turn + 1}</text>'
        )
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle" '
        'fill="#555">turn</text>'
    )
    for name, colour in COLOURS.items():
        points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(turns[name]))
        end = y(turns[name][-1])
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5" '
            'stroke-linejoin="round"/>'
            f'<text x="{WIDTH - RIGHT + 8}" y="{end + 4:.1f}" fill="{colour}">{NAMES[name]}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    rows = newest()
    (ROOT / "docs" / "ttft.svg").write_text(picture(rows["conversation TTFT"]["turns"]))
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}")


if __name__ == "__main__":
    main()

"""What flm bench measured as a picture: SVG, that reads on light and dark pages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 300
TOP, BOTTOM, LEFT, RIGHT, TITLE_LEFT = 72, 40, 52, 16, 20
STEPS = (1, 2, 2.5, 5, 10)
LINES_MAX = 5  # across a panel


@dataclass(frozen=True, slots=True)
class Line:
    """(mean, standard deviation) for each context length."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]


def picture(title: str, lengths: Sequence[int], lines: Sequence[Line]) -> str:
    """A panel for each line, by context length in tokens, ascending."""
    width = (WIDTH - RIGHT) / len(lines) - LEFT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        f'<text x="{TITLE_LEFT}" y="28" font-size="15" fill="#222">{escape(title)}</text>',
    ]
    for number, line in enumerate(lines):
        parts += _panel(line, lengths, LEFT + number * (width + LEFT), width)
    return "\n".join([*parts, "</svg>", ""])


def _panel(line: Line, lengths: Sequence[int], left: float, width: float) -> Iterator[str]:
    most = max(mean + spread for mean, spread in line.points)
    step = _step(most)
    count = int(most / step) + 1

    def x(index: int) -> float:
        return left + width * (index + 0.5) / len(lengths)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / (count * step)

    yield f'<text x="{left:.1f}" y="{TOP - 14}" fill="{line.colour}">{escape(line.name)}</text>'
    for number in range(count + 1):
        at = y(number * step)
        yield (
            f'<line x1="{left:.1f}" x2="{left + width:.1f}" y1="{at:.1f}" y2="{at:.1f}" '
            f'stroke="#e3e6ea"/><text x="{left - 8:.1f}" y="{at + 4:.1f}" text-anchor="end" '
            f'fill="#555">{number * step:,g}</text>'
        )
    for index, length in enumerate(lengths):
        yield (
            f'<text x="{x(index):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" '
            f'fill="#555">{length:,}</text>'
        )
    path = " ".join(f"{x(i):.1f},{y(mean):.1f}" for i, (mean, _) in enumerate(line.points))
    yield f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2"/>'
    for index, (mean, spread) in enumerate(line.points):
        low, high = y(max(0.0, mean - spread)), y(mean + spread)
        yield (
            f'<line x1="{x(index):.1f}" x2="{x(index):.1f}" y1="{low:.1f}" y2="{high:.1f}" '
            f'stroke="{line.colour}"/><circle cx="{x(index):.1f}" cy="{y(mean):.1f}" r="3.5" '
            f'fill="{line.colour}"><title>{mean:,.4g} ± {spread:,.2g}</title></circle>'
        )


def _step(most: float) -> float:
    """Between two lines across: a round number, of which few are enough."""
    unit: float = 1.0
    while most / unit > LINES_MAX * 10:
        unit *= 10
    while most / unit <= LINES_MAX and unit > 1e-6:
        unit /= 10
    return next(step * unit for step in STEPS if most / (step * unit) <= LINES_MAX)

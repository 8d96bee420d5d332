"""Which spans of a decode step share a pass: a pass runs over adjacent lanes."""

from collections.abc import Sequence

from flm.core.step import Span


def adjacent(spans: Sequence[Span]) -> list[list[Span]]:
    """The spans, which rise by lane, in runs without a gap."""
    runs: list[list[Span]] = []
    for span in spans:
        if runs and runs[-1][-1].lane + 1 == span.lane:
            runs[-1].append(span)
        else:
            runs.append([span])
    return runs

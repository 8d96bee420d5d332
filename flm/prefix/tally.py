"""What the prefix cache did, counted: plain numbers that only rise, by a few fixed labels."""

from collections import Counter
from dataclasses import dataclass, field

from flm.prefix.trie import Node, Slot


@dataclass(frozen=True, slots=True)
class Family:
    """Counts of one thing, told apart by `labels`; `unit` is what is counted."""

    name: str
    unit: str
    labels: tuple[str, ...]
    help: str


HITS = Family("hits", "", ("tier", "kind"), "prompts that began with a kept one")
MISSES = Family("misses", "", (), "prompts that began with none")
REUSED = Family("reused", "tokens", ("tier", "kind"), "tokens of prompts that were kept")
READ = Family("read", "tokens", (), "tokens of prompts that were read")
CAPTURES = Family("captures", "", ("kind",), "snapshots kept")
SKIPS = Family("skips", "", ("reason",), "snapshots not kept")
EVICTIONS = Family("evictions", "", ("tier", "kind"), "snapshots given up")
RESTORES = Family("restores", "", ("tier",), "times a lane was filled from a tier")
RESTORED = Family("restored", "bytes", ("tier",), "bytes that came from a tier")
RESTORE_S = Family("restore", "seconds", ("tier",), "seconds that restoring took")
WAITS = Family("waits", "", (), "prompts that waited for another to read what both begin with")
PARKED = Family("parked", "", (), "times a program's request gave up its lane to a person's")
AHEAD = Family("read_ahead", "tokens", ("outcome",), "tokens read ahead, and what became of them")
AHEAD_S = Family("read_ahead", "seconds", (), "seconds spent reading ahead")
AWAITED = Family("awaited", "", ("outcome",), "results of tools, by whether they were in time")
AUDITS = Family("audits", "", ("outcome",), "reused prompts read again, and compared")
FAMILIES = (
    HITS,
    MISSES,
    REUSED,
    READ,
    CAPTURES,
    SKIPS,
    EVICTIONS,
    RESTORES,
    RESTORED,
    RESTORE_S,
    WAITS,
    PARKED,
    AHEAD,
    AHEAD_S,
    AWAITED,
    AUDITS,
)


@dataclass(slots=True)
class Tally:
    """Written by the engine's thread; others may read, and see each count as of a moment ago."""

    counts: Counter[tuple[Family, tuple[str, ...]]] = field(default_factory=Counter)

    def add(self, family: Family, *labels: str, by: float = 1) -> None:
        assert len(labels) == len(family.labels), f"{family.name} takes {family.labels}"
        self.counts[family, labels] += by  # type: ignore[assignment]

    def of(self, family: Family, *labels: str) -> float:
        """The sum over all that begin with `labels`."""
        found = list(self.counts.items())
        return sum(n for (f, own), n in found if f is family and own[: len(labels)] == labels)


def count_used(tally: Tally, node: Node, offset: int) -> None:
    """A request resumes at `offset`, on the way to `node`: what was read ahead serves as far."""
    for each in node.path():
        if (slot := each.slot) and slot.ahead:
            used = max(0, min(offset, each.end) - (each.end - slot.ahead))
            tally.add(AHEAD, "used", by=used)
            slot.ahead -= used


def count_unused(tally: Tally, slot: Slot) -> None:
    """It is given up."""
    tally.add(AHEAD, "wasted", by=slot.ahead)

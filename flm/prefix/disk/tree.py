"""What lies on the disk, by the tokens that led to it: segments of rows, and snapshots on them.

Invariants, which `check` asserts:
  * A segment has the rows [start, end) and hangs on its parent at `start`, anywhere inside it:
    when prompts part nothing is written again.
  * From one place of a segment there is one way on for every next token.
  * Rows lead to a snapshot, but for the rest of a window; `resting` ones are about to.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from flm.core.alike import common_length
from flm.core.prompt import BoundaryKind
from flm.prefix.disk.stored import Part
from flm.prefix.trie import TOKEN_BYTES


@dataclass(eq=False, slots=True)
class Segment:
    number: int  # 0: the root of a domain, which has no rows
    domain: str
    parent: "Segment | None"
    start: int
    end: int
    tokens: bytes  # of [start, end), packed
    children: dict[tuple[int, bytes], "Segment"] = field(default_factory=dict)  # by start, token
    entries: dict[int, "Entry"] = field(default_factory=dict)  # by offset

    @property
    def key(self) -> tuple[int, bytes]:
        return self.start, self.tokens[:TOKEN_BYTES]

    def below(self) -> Iterator["Segment"]:
        """This one and all that hang on it."""
        stack = [self]
        while stack:
            segment = stack.pop()
            yield segment
            stack.extend(segment.children.values())

    def path(self) -> Iterator["Segment"]:
        """This one and those it hangs on, without the root."""
        segment = self
        while segment.parent:
            yield segment
            segment = segment.parent


@dataclass(eq=False, slots=True)
class Entry:
    """One snapshot: what it has beyond the rows that lead to it."""

    number: int
    segment: Segment
    offset: int
    kind: BoundaryKind
    used_at: float
    state_bytes: int = 0  # of its file; 0: there is none
    logits_bytes: int = 0
    pins: int = 0  # reads that have chosen it and have not landed


class Tree:
    def __init__(self, rows_bytes: Callable[[int], int], window: int) -> None:
        self.rows_bytes = rows_bytes  # of a file of so many rows
        self.window = window
        self.roots: dict[str, Segment] = {}
        self.segments: dict[int, Segment] = {}
        self.entries: dict[int, Entry] = {}
        self.resting: tuple[Segment, int] | None = None
        self.bytes = 0

    def root(self, domain: str) -> Segment:
        return self.roots.setdefault(domain, Segment(0, domain, None, 0, 0, b""))

    def way(self, domain: str, tokens: bytes) -> list[tuple[Segment, int]]:
        """The segments on the way of `tokens`, and how far each lies on it."""
        way: list[tuple[Segment, int]] = []
        segment, at = self.roots.get(domain), 0
        while segment:
            here = at * TOKEN_BYTES
            segment = segment.children.get((at, tokens[here : here + TOKEN_BYTES]))
            if segment:
                ahead = tokens[here : here + len(segment.tokens)]
                at += common_length(segment.tokens, ahead) // TOKEN_BYTES
                way.append((segment, at))
        return way

    def parts(self, way: list[tuple[Segment, int]], offset: int) -> tuple[Part, ...]:
        return tuple(
            Part(segment.number, segment.start, min(stop, offset), segment.end)
            for segment, stop in way
            if segment.start < offset
        )

    def through(self, segment: Segment, offset: int) -> Entry:
        """The nearest snapshot that has the row before `offset`, which is within `reach`."""
        beyond = [entry for at, entry in segment.entries.items() if at >= offset]
        if beyond:
            return min(beyond, key=lambda entry: entry.offset)
        hanging = [child for child in segment.children.values() if child.start >= offset]
        below = (entry for child in hanging for s in child.below() for entry in s.entries.values())
        return min(below, key=lambda entry: entry.offset)

    def reach(self, segment: Segment) -> int:
        """How far its rows lead to a snapshot that is there; its start if they don't."""
        leading = (c.start for c in segment.children.values() if any(s.entries for s in c.below()))
        return max((segment.start, *segment.entries, *leading))

    def needed(self, segment: Segment) -> int:
        """How far its rows lead anywhere; its start if they don't."""
        ends = [segment.start, *segment.entries]
        ends.extend(child.start for child in segment.children.values())
        if self.resting and self.resting[0] is segment:
            ends.append(self.resting[1])
        return max(ends)

    def add_segment(self, segment: Segment) -> None:
        assert segment.parent
        assert segment.key not in segment.parent.children, f"second way from {segment.start}"
        segment.parent.children[segment.key] = segment
        self.segments[segment.number] = segment
        self.bytes += self.rows_bytes(segment.end - segment.start)

    def remove_segment(self, segment: Segment) -> None:
        """Nothing is on it any more."""
        assert segment.parent
        del segment.parent.children[segment.key]
        del self.segments[segment.number]
        self.bytes -= self.rows_bytes(segment.end - segment.start)

    def add_entry(self, entry: Entry) -> None:
        assert entry.offset not in entry.segment.entries, f"two at {entry.offset}"
        entry.segment.entries[entry.offset] = entry
        self.entries[entry.number] = entry
        self.bytes += entry.state_bytes + entry.logits_bytes

    def remove_entry(self, entry: Entry) -> None:
        del entry.segment.entries[entry.offset]
        del self.entries[entry.number]
        self.bytes -= entry.state_bytes + entry.logits_bytes

    def prune(self, segment: Segment) -> tuple[list[Segment], list[Segment]]:
        """Drop the rows that led to `segment` and lead nowhere now: (segments gone, cut short).

        A cut falls behind a whole window.
        """
        gone: list[Segment] = []
        while segment.parent:
            needed = self.needed(segment)
            if needed > segment.start:
                return gone, [segment] if self._cut(segment, needed) else []
            self.remove_segment(segment)
            gone.append(segment)
            segment = segment.parent
        if not segment.children and not (self.resting and self.resting[0] is segment):
            self.roots.pop(segment.domain, None)
        return gone, []

    def check(self) -> None:
        total = 0
        seen: set[int] = set()
        for domain, root in self.roots.items():
            for segment in root.below():
                assert segment.domain == domain
                for key, child in segment.children.items():
                    assert child.parent is segment
                    assert key == child.key
                    assert segment.start < child.start <= segment.end or segment is root
                for offset, entry in segment.entries.items():
                    assert entry.segment is segment
                    assert segment.start < offset == entry.offset <= segment.end
                    assert self.entries[entry.number] is entry
                    total += entry.state_bytes + entry.logits_bytes
                if segment is not root:
                    assert len(segment.tokens) == (segment.end - segment.start) * TOKEN_BYTES
                    assert segment.start < self.needed(segment) <= segment.end
                    assert segment.end - self.needed(segment) < self.window, "leads nowhere"
                    assert self.segments[segment.number] is segment
                    total += self.rows_bytes(segment.end - segment.start)
                    seen.add(segment.number)
        assert seen == set(self.segments)
        assert total == self.bytes, f"{self.bytes} bytes counted, {total} there"

    def _cut(self, segment: Segment, needed: int) -> bool:
        windows = -(-(needed - segment.start) // self.window)
        end = segment.start + windows * self.window
        if end >= segment.end:
            return False
        self.bytes -= self.rows_bytes(segment.end - segment.start)
        segment.end, segment.tokens = end, segment.tokens[: windows * self.window * TOKEN_BYTES]
        self.bytes += self.rows_bytes(segment.end - segment.start)
        return True

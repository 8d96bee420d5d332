"""What goes first when the disk lacks room.

1. Files set aside because they broke, then folders of other identities, the longest unused first.
2. Snapshots that nobody used for `STALE_S`, whatever they are, the least recently used first: on
   a disk things last, and heads that nobody sends any more would fill it.
3. Ends, then openers, then turns, then what conversations share; of a kind the least recently used.
"""

from collections.abc import Iterable

from flm.prefix.disk.tree import Entry, Segment, Tree
from flm.prefix.ranks import RANK

STALE_S = 14 * 24 * 3600.0


def order(entries: Iterable[Entry], now: float) -> list[Entry]:
    """Those that may go, the first to go first: a read that has chosen one keeps it."""

    def place(entry: Entry) -> tuple[int, float, int]:
        group = -1 if now - entry.used_at > STALE_S else RANK[entry.kind]
        return group, entry.used_at, entry.number

    return sorted((entry for entry in entries if not entry.pins), key=place)


def bytes_held(tree: Tree) -> int:
    """What stays when all goes that may: the ways to pinned snapshots and to where one rests."""
    needed: dict[Segment, int] = {}

    def need(segment: Segment, offset: int) -> None:
        while segment.parent:
            needed[segment] = max(needed.get(segment, 0), offset)
            segment, offset = segment.parent, segment.start

    if tree.resting:
        need(*tree.resting)
    total = 0
    for entry in tree.entries.values():
        if entry.pins:
            need(entry.segment, entry.offset)
            total += entry.state_bytes + entry.logits_bytes
    for segment, offset in needed.items():
        windows = -(-(offset - segment.start) // tree.window)
        count = min(windows * tree.window, segment.end - segment.start)
        total += tree.rows_bytes(count)
    return total

"""Which kept snapshot is given up first, when room lacks. FastFlowLM's order:

1. one whose conversation has a newer one: it was *outgrown*;
2. the least recently used: ends first, then openers, then turns;
3. the least recently used of those that conversations share, once nothing depends on it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from flm.core.prompt import BoundaryKind
from flm.prefix.trie import Node

# The longer a kind serves, the later it goes.
ORDER = (
    BoundaryKind.END,
    BoundaryKind.OPENER,
    BoundaryKind.TURN,
    BoundaryKind.FORK,
    BoundaryKind.HINT,
    BoundaryKind.HEAD,
)
RANK = {kind: rank for rank, kind in enumerate(ORDER)}
SHARED = {BoundaryKind.FORK, BoundaryKind.HINT, BoundaryKind.HEAD}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A slot that may go now."""

    number: int
    kind: BoundaryKind
    used_at: int
    outgrown: bool


def victim(candidates: Iterable[Candidate]) -> Candidate | None:
    return min(candidates, key=_place, default=None)


def _place(candidate: Candidate) -> tuple[int, int, int]:
    group = -1 if candidate.outgrown else RANK[candidate.kind]
    return group, candidate.used_at, candidate.number


def outgrown(slots: Iterable[Node], newcomer: BoundaryKind, below: Node) -> set[Node]:
    """Those whose conversation has a newer snapshot, or is about to have one below `below`.

    Newer is: further down the same way, used since, and of a kind that serves as long. So a turn
    outlives the tool loop that follows it, and of two forks neither outgrows the other.
    """
    newer: dict[Node, int] = {}  # node -> the highest rank of those gone through, here or below

    def mark(node: Node | None, kind: BoundaryKind) -> None:
        # A node that has the rank has given it to all above.
        while kind not in SHARED and node and newer.get(node, -1) < RANK[kind]:
            newer[node] = RANK[kind]
            node = node.parent

    mark(below, newcomer)
    found = set()
    for node in sorted(slots, key=_youngest_first):
        assert node.slot
        if node.slot.kind not in SHARED and newer.get(node, -1) >= RANK[node.slot.kind]:
            found.add(node)
        mark(node, node.slot.kind)
    return found


def _youngest_first(node: Node) -> tuple[int, int]:
    """What one request kept has one age; from the start on, so that its own never outgrow it."""
    assert node.slot
    return -node.slot.used_at, node.end

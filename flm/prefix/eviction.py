"""Which kept snapshot is given up first, when room lacks.

`flm` is FastFlowLM's order, with people before programs as ignis has it:

1. one whose conversation has a newer one: it was *outgrown*;
2. the least recently used: ends first, then openers, then turns; of each first an agent's;
3. the least recently used of those that conversations share, once nothing depends on it.

`density` begins like it, with the outgrown and the ends. Then goes what saves least for the memory
and the time it takes: tokens that would have to be read again, for each byte that is really freed,
by how long nobody wanted it; what conversations share counts twice. bench/prefix.py compares the
two, and others, on recorded and made-up traffic.
"""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

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
RANK_SHARED = min(RANK[kind] for kind in SHARED)

# The longer a conversation pauses, the longer it will: the chance that it goes on in the next
# second falls as one over its pause and this. From 10 to 60 the figures are much the same.
PAUSE_S = 20.0
# What conversations share is wanted by whichever of them goes on next, and by new ones.
SHARED_WORTH = 2.0


class Candidate(NamedTuple):
    """A slot that may go now. A tuple, for a thousand of them are made while a prompt waits."""

    number: int
    kind: BoundaryKind
    used_at: int  # counts uses, so that the smallest is the longest unused
    outgrown: bool
    agent: bool = False  # a program's, or of a person who has been away for long
    idle_s: float = 0.0  # since a prompt last resumed there, or where it then had to
    tokens_saved: int = 0  # would be read again without it, from the nearest kept one above
    bytes_freed: int = 0  # at once: its state, its logits and the rows that lead nowhere else


Policy = Callable[[Iterable[Candidate]], Candidate | None]  # None: there are no candidates


def flm(candidates: Iterable[Candidate]) -> Candidate | None:
    return min(candidates, key=_place, default=None)


def density(candidates: Iterable[Candidate]) -> Candidate | None:
    return min(candidates, key=_worth, default=None)


POLICIES: dict[str, Policy] = {"flm": flm, "density": density}


def _place(candidate: Candidate) -> tuple[int, bool, int, int]:
    number, kind, used_at, is_outgrown, agent, *_ = candidate
    if is_outgrown:
        return -1, False, used_at, number
    return RANK[kind], not agent and kind not in SHARED, used_at, number


def _worth(candidate: Candidate) -> tuple[bool, float, int]:
    number, kind, used_at, is_outgrown, _, idle_s, tokens_saved, bytes_freed = candidate
    # Wanted only by who goes back in a conversation, or sends the same again.
    if is_outgrown or kind is BoundaryKind.END:
        return False, used_at, number
    worth = SHARED_WORTH if kind in SHARED else 1.0
    return True, worth * tokens_saved / (bytes_freed or 1) / (idle_s + PAUSE_S), number


def hand_up(node: Node) -> None:
    """The slot of `node` is given up: who would have resumed there will resume at the nearest that
    is kept above, which is thus wanted as lately.
    """
    slot, above = node.slot, node.parent
    assert slot
    while above and not above.slot:
        above = above.parent
    if above and above.slot:
        above.slot.used_s = max(above.slot.used_s, slot.used_s)


def stake(node: Node, held: Collection[Node], row_bytes: int) -> tuple[int, int]:
    """(tokens, bytes): what giving up the slot of `node` would have read again, and would free.

    Rows that another snapshot or a lease needs stay; only a state is then missing.
    """
    slot, start, above = node.slot, node.end, node.parent
    assert slot
    if not node.children and node not in held:
        start = node.start
        while above and above.parent and not above.slot and len(above.children) == 1:
            if above in held:
                break
            start, above = above.start, above.parent
    rows = node.end - start
    if not slot.state:
        return rows, slot.bytes + rows * row_bytes
    while above and not above.slot:
        above = above.parent
    return node.end - (above.end if above else 0), slot.bytes + rows * row_bytes


def outgrown(slots: Iterable[Node], newcomer: BoundaryKind, below: Node) -> set[Node]:
    """Those whose conversation has a newer snapshot, or is about to have one below `below`.

    Newer is: further down the same way, used since, and of a kind that serves as long. So a turn
    outlives the tool loop that follows it, and of two forks neither outgrows the other.
    """
    newer: dict[Node, int] = {}  # node -> the highest rank of those gone through, here or below

    def mark(node: Node | None, rank: int) -> None:
        # A node that has the rank has given it to all above.
        while node and newer.get(node, -1) < rank:
            newer[node] = rank
            node = node.parent

    if newcomer not in SHARED:
        mark(below, RANK[newcomer])
    found = set()
    for node in sorted(slots, key=_youngest_first):
        assert node.slot
        rank = RANK[node.slot.kind]
        if rank < RANK_SHARED:
            if newer.get(node, -1) >= rank:
                found.add(node)
            mark(node, rank)
    return found


def _youngest_first(node: Node) -> tuple[int, int]:
    """What one request kept has one age; from the start on, so that its own never outgrow it."""
    assert node.slot
    return -node.slot.used_at, node.end

"""Which kept snapshot is given up first, when room lacks.

`flm` is FastFlowLM's order, with people before programs as ignis has it:

1. one whose conversation has a newer one: it was *outgrown*;
2. the least recently used: ends first, then openers, then turns; of each first an agent's;
3. the least recently used of those that conversations share, once nothing depends on it.

`density` begins like it, with the outgrown and the ends. Then goes what saves least for the memory
and the time it takes: tokens that would have to be read again, for each byte that is really freed,
by how long nobody wanted it; what conversations share counts twice.

`pinning` is `density` for all but what is awaited (flm/prefix/awaited.py): the end of a
conversation that waits for a tool goes when only such are left.

bench/prefix.py compares them, and others, on recorded and made-up traffic.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from flm.core.prompt import BoundaryKind
from flm.prefix.ranks import RANK, SHARED
from flm.prefix.trie import Node

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
    awaited: bool = False  # its conversation waits for a tool that is not late, and has no newer


Policy = Callable[[Iterable[Candidate]], Candidate | None]  # None: there are no candidates


def flm(candidates: Iterable[Candidate]) -> Candidate | None:
    return min(candidates, key=_place, default=None)


def density(candidates: Iterable[Candidate]) -> Candidate | None:
    return min(candidates, key=_worth, default=None)


def pinning(candidates: Iterable[Candidate]) -> Candidate | None:
    return min(candidates, key=lambda each: (each.awaited, *_worth(each)), default=None)


POLICIES: dict[str, Policy] = {"flm": flm, "density": density, "pinning": pinning}


def _place(candidate: Candidate) -> tuple[int, bool, int, int]:
    number, kind, used_at, is_outgrown, agent, *_ = candidate
    if is_outgrown:
        return -1, False, used_at, number
    return RANK[kind], not agent and kind not in SHARED, used_at, number


def _worth(candidate: Candidate) -> tuple[bool, float, int]:
    number, kind, used_at, is_outgrown, _, idle_s, tokens_saved, bytes_freed, _ = candidate
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

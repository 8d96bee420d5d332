"""Which kept snapshots their conversation has outgrown.

One is outgrown once the conversation has a newer one: further down the same way, used since, and of
a kind that serves as long. So a turn outlives the tool loop that follows it, and of two forks
neither outgrows the other; nor does what one request kept, for it has one age.

Each node remembers when what is below it was last used (`Node.newest`): the trie keeps that up to
date, and to ask is to compare two numbers.
"""

from typing import TYPE_CHECKING

from flm.prefix.ranks import RANK, RANK_SHARED, SHARED

if TYPE_CHECKING:
    from flm.prefix.trie import Node

Newest = tuple[int, ...]  # for each rank of a conversation's own: the last use of such or higher
NEVER: Newest = (0,) * RANK_SHARED


def outgrown(node: "Node") -> bool:
    assert node.slot
    rank = RANK[node.slot.kind]
    return rank < RANK_SHARED and node.newest[rank] > node.slot.used_at


def newest_to(node: "Node") -> Newest:
    """Of what is kept at `node` and below."""
    slot, newest = node.slot, node.newest
    if slot is None or slot.kind in SHARED:
        return newest
    upto = RANK[slot.kind] + 1
    return (*(max(each, slot.used_at) for each in newest[:upto]), *newest[upto:])


def newest_below(node: "Node") -> Newest:
    """Counted anew."""
    each_child = (newest_to(child) for child in node.children.values())
    return tuple(map(max, zip(NEVER, *each_child, strict=True)))


def rise(node: "Node") -> None:
    """What is kept at `node` is new there, or was used: tell those above. The root asks nothing."""
    newest, above = newest_to(node), node.parent
    while above and above.parent:
        known = tuple(map(max, above.newest, newest))
        if known == above.newest:
            return
        above.newest, above = known, above.parent


def sink(above: "Node | None", used_at: int) -> None:
    """What was kept somewhere below `above`, and last used then, counts no longer."""
    while above and above.parent and used_at in above.newest:
        above.newest, above = newest_below(above), above.parent

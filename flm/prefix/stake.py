"""What is at stake with a kept snapshot: what would have to be read again without it, and what
giving it up would free.

Slots remember it; when the trie changes, those forget it whose stake may have changed.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flm.prefix.trie import Node

Stake = tuple[int, int]  # tokens, bytes


def stake(node: "Node", held: Collection["Node"], row_bytes: int) -> Stake:
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


def spared(held: Collection["Node"]) -> set["Node"]:
    """Those who free less than if nothing were held: the held, and who is alone below one."""
    found = set(held)
    for node in held:
        while not node.slot and len(node.children) == 1:
            (node,) = node.children.values()
            found.add(node)
    return found


def forget(node: "Node") -> None:
    """A slot came to `node`, changed there or went."""
    if node.slot:
        node.slot.stake = None
    _forget_below(node)


def forget_branch(parent: "Node") -> None:
    """A child came to `parent`, or went."""
    if parent.slot:
        parent.slot.stake = None
    elif len(parent.children) <= 2:  # with more, they part there before and after
        _forget_below(parent)


def _forget_below(node: "Node") -> None:
    """The nearest that are kept below count their tokens, and perhaps their rows, from above it."""
    stack = list(node.children.values())
    while stack:
        child = stack.pop()
        if child.slot:
            child.slot.stake = None
        else:
            stack.extend(child.children.values())

"""What goes from memory to the disk, and when: lazily, but before it would be lost."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from flm.core.prompt import BoundaryKind
from flm.prefix.disk.stored import Piece, Unwritten
from flm.prefix.disk.tier import DiskTier
from flm.prefix.eviction import outgrown
from flm.prefix.trie import Node, Slot

if TYPE_CHECKING:
    from flm.prefix.cache import PrefixCache

SPILL_FROM = 0.5  # of memory filled; below, nothing is near being given up


def begin_spill(cache: "PrefixCache", *, all_of_it: bool) -> bool:
    """As PrefixCache.spill."""
    cache.reap()
    if cache.transit:
        pass_on(cache)
    if cache.settled_at == cache.ticked and not all_of_it:
        return False
    node = next_to_write(cache, all_of_it=all_of_it)
    if node is None or node.slot is None or cache.disk is None:
        return False
    write(cache.disk, node.slot, unwritten(cache, node), cache.warn)
    return True


def next_to_write(cache: "PrefixCache", *, all_of_it: bool) -> Node | None:
    """Of those the disk lacks: the one that would go first, or the newest when all are to go.

    One at a time; what its conversation has outgrown is not worth the wear.
    """
    full = cache.bytes_kept >= SPILL_FROM * cache.bytes_max
    if cache.disk is None or not (all_of_it or full or cache.transit):
        return None
    slots = [node for node in cache.slots.values() if _lacking(node.slot)]
    if any(node.slot and node.slot.writing for node in slots) and not all_of_it:
        return None
    waiting = []
    if slots:
        root = next(iter(cache.trie.roots.values()))  # of any domain: a head outgrows nothing
        old = outgrown(cache.slots.values(), BoundaryKind.HEAD, root)
        waiting = [
            each for each in slots if each not in old and each.slot and not each.slot.writing
        ]
    if not waiting:
        cache.settled_at = cache.ticked
    first = max if all_of_it else min
    return first(waiting, key=_used_at, default=None)


def unwritten(cache: "PrefixCache", node: Node) -> Unwritten:
    """The snapshot at the end of `node`, its arrays as they are."""
    slot = node.slot
    assert slot
    tokens, domain = cache.way_of(node)
    pieces = [Piece(each.start, each.end, dict(each.rows)) for each in node.path()]
    return Unwritten(domain, tokens, slot.kind, pieces[::-1], slot.state, slot.logits)


def write(disk: DiskTier, slot: Slot, item: Unwritten, warn: Callable[[str], None]) -> None:
    """Begin to; until it is there, or will not be, the slot's arrays are in use."""
    future = slot.writing = disk.put(item)

    def written(_: object) -> None:  # on the tier's thread: flags, read by ours
        if not future.cancelled() and (error := future.exception()):
            warn(f"Prefix cache: a snapshot could not be written to disk: {error!r}")
        there = disk.store.holds(item.domain, item.tokens)
        slot.refused = not there  # no room, or the disk fails: once is enough
        slot.on_disk = there and slot.logits is item.logits
        if slot.doomed:
            disk.store.remove(item.domain, item.tokens)
        slot.writing = None

    future.add_done_callback(written)


def pass_on(cache: "PrefixCache") -> None:
    """Let go of what the disk has by now, and no request is on."""
    held = {node for lease in cache.leases for node in lease.node.path()}
    for node in list(cache.slots.values()):
        if node.slot and node.slot.on_disk and node not in held:
            cache.drop(node)


def _lacking(slot: Slot | None) -> bool:
    return slot is not None and not (slot.on_disk or slot.refused or slot.doomed)


def _used_at(node: Node) -> int:
    assert node.slot
    return node.slot.used_at

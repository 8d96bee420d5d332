"""What goes from memory to the disk, and when: lazily, but before it would be lost."""

import math
from typing import TYPE_CHECKING

from flm.prefix.disk.stored import Piece, Unwritten
from flm.prefix.disk.tier import DiskTier
from flm.prefix.moves import Moved
from flm.prefix.outgrown import outgrown
from flm.prefix.trie import Node, Slot

if TYPE_CHECKING:
    from flm.prefix.cache import PrefixCache

SPILL_FROM = 0.5  # of memory filled; below, nothing is near being given up
# What the disk did not take is offered again after this, and each time after twice as long: a read
# may have held the room, or another server, or the disk itself was at fault.
OFFER_S = 60.0


def begin_spill(cache: "PrefixCache", *, all_of_it: bool) -> bool:
    """As PrefixCache.spill."""
    cache.reap()
    if cache.transit:
        pass_on(cache)
    settled = cache.settled_at == cache.ticked and cache.clock() < cache.offer_s
    if settled and not all_of_it:
        return False
    node = next_to_write(cache, all_of_it=all_of_it)
    if node is None or node.slot is None or cache.disk is None:
        return False
    write(cache, cache.disk, node.slot, unwritten(cache, node))
    return True


def flush(cache: "PrefixCache", disk: DiskTier) -> None:
    """Begin to write all that it lacks."""
    for node in cache.slots.values():  # it may have given some up since
        if node.slot and node.slot.on_disk:
            tokens, domain = cache.way_of(node)
            node.slot.on_disk = disk.store.holds(domain, tokens)
        if node.slot:
            node.slot.offer_s = 0.0  # there may be room by now
    while begin_spill(cache, all_of_it=True):
        pass


def next_to_write(cache: "PrefixCache", *, all_of_it: bool) -> Node | None:
    """Of those the disk lacks: the one that would go first, or the newest when all are to go.

    One at a time; what its conversation has outgrown is not worth the wear.
    """
    full = cache.bytes_kept >= SPILL_FROM * cache.bytes_max
    if cache.disk is None or not (all_of_it or full or cache.transit):
        return None
    lacking = [node for node in cache.slots.values() if _lacking(node.slot)]
    writing = any(node.slot and node.slot.writing for node in lacking)
    if writing and not all_of_it:
        return None
    now = cache.clock()
    due = [each for each in lacking if each.slot and each.slot.offer_s <= now]
    waiting = [each for each in due if each.slot and not (each.slot.writing or outgrown(each))]
    if not (waiting or writing):
        cache.settled_at = cache.ticked
        later = (each.slot.offer_s for each in lacking if each.slot and each not in due)
        cache.offer_s = min(later, default=math.inf)
    first = max if all_of_it else min
    return first(waiting, key=_used_at, default=None)


def unwritten(cache: "PrefixCache", node: Node) -> Unwritten:
    """The snapshot at the end of `node`, its arrays as they are."""
    slot = node.slot
    assert slot
    tokens, domain = cache.way_of(node)
    pieces = [Piece(each.start, each.end, dict(each.rows)) for each in node.path()]
    return Unwritten(domain, tokens, slot.kind, pieces[::-1], slot.state, slot.logits)


def write(cache: "PrefixCache", disk: DiskTier, slot: Slot, item: Unwritten) -> None:
    """Begin to; until it is there, or will not be, the slot's arrays are in use."""
    future = slot.writing = disk.put(item)

    def written(_: object) -> None:  # on the tier's thread: flags, read by ours
        if not future.cancelled() and (error := future.exception()):
            cache.warn(f"Prefix cache: a snapshot could not be written to disk: {error!r}")
        there = disk.store.holds(item.domain, item.tokens)
        slot.refusals = 0 if there else slot.refusals + 1
        slot.offer_s = 0.0 if there else cache.clock() + OFFER_S * 2 ** (slot.refusals - 1)
        slot.on_disk = there and slot.logits is item.logits
        if slot.doomed:
            disk.store.remove(item.domain, item.tokens)
        slot.writing = None
        if there:
            cache.told(Moved.WRITTEN, item.domain, item.kind, item.pieces[-1].end)

    future.add_done_callback(written)


def pass_on(cache: "PrefixCache") -> None:
    """Let go of what the disk has by now, and no request is on."""
    held = {node for lease in cache.leases for node in lease.node.path()}
    for node in list(cache.slots.values()):
        if node.slot and node.slot.on_disk and node not in held:
            cache.drop(node, Moved.LEFT)


def _lacking(slot: Slot | None) -> bool:
    return slot is not None and not (slot.on_disk or slot.doomed)


def _used_at(node: Node) -> int:
    assert node.slot
    return node.slot.used_at

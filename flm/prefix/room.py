"""Whether one more snapshot can fit, and which of the kept ones may go for it. Decides, and acts
on nothing: the cache gives up what is named here.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flm.prefix.addition import Addition
from flm.prefix.eviction import SHARED, Candidate, outgrown, stake
from flm.prefix.trie import Match, Node

if TYPE_CHECKING:
    from flm.prefix.cache import PrefixCache


@dataclass(frozen=True, slots=True)
class Standing:
    """How the kept stand while room is made for an addition."""

    held: Collection[Node]  # on the way of a lease, or being written: their rows stay
    outgrown: Collection[Node]
    loose: Collection[Node]  # slots that may go, at once or when nothing depends on them


def standing(cache: "PrefixCache", addition: Addition) -> Standing:
    node = cache.trie.find(addition.domain, addition.tokens).node
    below = node if node.end < addition.offset else node.parent
    assert below
    slots = cache.slots.values()
    old = outgrown(slots, addition.kind, below)
    writing = {node for node in slots if node.slot and node.slot.writing}
    resting = {lease.node for lease in cache.leases}
    held = {way for node in resting | writing for way in node.path()}
    fixed = writing | {lease.node for lease in cache.leases if lease.kept_at is None}
    loose = {
        node
        for node in slots
        if node not in fixed and (node in old or not (node in held or addition.modest))
    }
    return Standing(held, old, loose)


def can_fit(cache: "PrefixCache", addition: Addition, stand: Standing) -> bool:
    """Whether it would, with all that is loose given up."""
    match = cache.trie.find(addition.domain, addition.tokens)
    stuck = [node for node in cache.slots.values() if node not in stand.loose]
    ways = {way for node in stuck for way in node.path()} | set(stand.held)
    if match.child not in ways:
        match = Match(match.node, None, match.node.end)
    bytes_stuck = sum(node.end - node.start for node in ways) * cache.row_bytes
    bytes_stuck += sum(node.slot.bytes for node in stuck if node.slot)
    fits = cache.bytes_coming + bytes_stuck + addition.bytes(match) <= cache.bytes_max
    return fits and not over(cache, len(stuck) + addition.slots(match))


def over(cache: "PrefixCache", slots: int) -> bool:
    return cache.slots_max is not None and slots > cache.slots_max


def candidates(cache: "PrefixCache", stand: Standing, *, any_will_do: bool) -> Iterator[Candidate]:
    """Slots that may go now; where bytes are lacking, only those that free some."""
    now, ttl_s, row_bytes = cache.clock(), cache.interactive_ttl_s, cache.row_bytes
    loose, held, old = stand.loose, stand.held, stand.outgrown
    for number, node in cache.slots.items():
        slot = node.slot
        assert slot
        if node not in loose or (node.children and slot.kind in SHARED):
            continue
        tokens_saved, bytes_freed = stake(node, held, row_bytes)
        if any_will_do or bytes_freed:
            idle_s = now - slot.used_s
            agent = slot.agent or idle_s > ttl_s
            # By place: this runs a thousand times for each that is given up.
            yield Candidate(
                number,
                slot.kind,
                slot.used_at,
                node in old,
                agent,
                idle_s,
                tokens_saved,
                bytes_freed,
            )

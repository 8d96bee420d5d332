"""Making room for one more snapshot: whether it can fit, which of the kept ones may go for it, and
giving those up that the policy names.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flm.core.finding import Fate, FateKind
from flm.prefix.addition import Addition
from flm.prefix.eviction import Candidate, hand_up
from flm.prefix.moves import Moved
from flm.prefix.outgrown import outgrown
from flm.prefix.ranks import RANK, SHARED
from flm.prefix.stake import spared, stake
from flm.prefix.tally import EVICTIONS
from flm.prefix.trie import Match, Node

if TYPE_CHECKING:
    from flm.prefix.cache import PrefixCache
    from flm.prefix.lease import Lease


def make_room(cache: "PrefixCache", addition: Addition) -> bool:
    """As PrefixCache.make_room."""
    stand = standing(cache, addition)
    if not can_fit(cache, addition, stand):
        return False
    while True:
        match = cache.trie.find(addition.domain, addition.tokens)
        needed = cache.bytes_kept + cache.bytes_coming + addition.bytes(match)
        slots = cache.slot_count + (cache.left.slot_count if cache.left else 0)
        lacks_slot = over(cache, slots + addition.slots(match))
        if needed <= cache.bytes_max - left_bytes(cache) and not lacks_slot:
            return True
        if cache.left and cache.left.slot_count:
            cache.left.give_up()
            continue
        going = cache.policy(candidates(cache, stand, any_will_do=lacks_slot))
        assert going, "fits, but there is nothing left to give up"
        give_up(cache, going)


def has_room(cache: "PrefixCache", addition: Addition, reader: "Lease") -> bool:
    """Whether it could be kept once `reader` has read it: what is being written is there by then,
    and memory that is only the way to the disk has let go of what it holds.
    """
    return cache.transit or can_fit(cache, addition, standing(cache, addition, reader))


def left_bytes(cache: "PrefixCache") -> int:
    """Of what other models have left, which is within the same budget."""
    return cache.left.bytes if cache.left else 0


def give_up_one(cache: "PrefixCache") -> None:
    """Of what nobody uses."""
    assert not cache.leases
    stand = Standing((), {node: outgrown(node) for node in cache.slots.values()}, ())
    going = cache.policy(candidates(cache, stand, any_will_do=False))
    assert going, "nothing is kept"
    give_up(cache, going)


def give_up(cache: "PrefixCache", going: Candidate) -> None:
    node = cache.slots[going.number]
    # FastFlowLM's word for all that is not shared: it ends what was a whole prompt, or nearly.
    kind = going.kind.value if going.kind in SHARED else "end"
    which = "an outgrown" if going.outgrown else "the least recently used"
    cache.log(f"Prefix cache: dropping {which} {kind} snapshot ({node.end} tokens)")
    cache.tally.add(EVICTIONS, "host", going.kind.value)
    tokens, domain = cache.way_of(node)
    why = Moved.OUTGROWN if going.outgrown else Moved.EVICTED
    if cache.disk and cache.disk.store.holds(domain, tokens):
        why = Moved.LEFT
    else:
        fate = Fate(FateKind.EVICTED, node.end, going.kind, going.outgrown)
        cache.ghosts.note(domain, tokens, fate)
    hand_up(node)
    cache.drop(node, why)


@dataclass(frozen=True, slots=True)
class Standing:
    """How the kept stand while room is made for an addition."""

    held: Collection[Node]  # on the way of a lease, or being written: their rows stay
    loose: Mapping[Node, bool]  # may go, at once or when nothing depends on them: if outgrown
    stuck: Collection[Node]


def standing(cache: "PrefixCache", addition: Addition, reader: "Lease | None" = None) -> Standing:
    """`reader`: as they will once it keeps what it is yet to read."""
    slots = cache.slots.values()
    writing = {node for node in slots if node.slot and node.slot.writing}
    resting = {lease.node for lease in cache.leases}
    if reader:
        writing.clear()
        resting.add(cache.trie.find(addition.domain, addition.tokens).node)
    held = {way for node in resting | writing for way in node.path()}
    starts = {each.node for each in cache.leases if each.kept_at is None and each is not reader}
    fixed = writing | starts
    above, rank = _outgrowing(cache, addition), RANK[addition.kind]
    loose, stuck = {}, []
    for node in slots:
        assert node.slot
        old = outgrown(node) or (node in above and RANK[node.slot.kind] <= rank)
        if node not in fixed and (old or not (node in held or addition.modest)):
            loose[node] = old
        else:
            stuck.append(node)
    return Standing(held, loose, stuck)


def _outgrowing(cache: "PrefixCache", addition: Addition) -> set[Node]:
    """Where it outgrows what serves no longer than itself: on its way, unless others share it."""
    node = cache.trie.find(addition.domain, addition.tokens).node
    below = node if node.end < addition.offset else node.parent
    assert below
    return set() if addition.kind in SHARED else set(below.path())


def can_fit(cache: "PrefixCache", addition: Addition, stand: Standing) -> bool:
    """Whether it would, with all that is loose given up."""
    match = cache.trie.find(addition.domain, addition.tokens)
    ways = {way for node in stand.stuck for way in node.path()} | set(stand.held)
    if match.child not in ways:
        match = Match(match.node, None, match.node.end)
    bytes_stuck = sum(node.end - node.start for node in ways) * cache.row_bytes
    bytes_stuck += sum(node.slot.bytes for node in stand.stuck if node.slot)
    slots_stuck = len(stand.stuck)
    if cache.left and addition.modest:
        bytes_stuck += cache.left.bytes
        slots_stuck += cache.left.slot_count
    fits = cache.bytes_coming + bytes_stuck + addition.bytes(match) <= cache.bytes_max
    return fits and not over(cache, slots_stuck + addition.slots(match))


def over(cache: "PrefixCache", slots: int) -> bool:
    return cache.slots_max is not None and slots > cache.slots_max


def candidates(cache: "PrefixCache", stand: Standing, *, any_will_do: bool) -> Iterator[Candidate]:
    """Slots that may go now; where bytes are lacking, only those that free some."""
    now, ttl_s, row_bytes = cache.clock(), cache.interactive_ttl_s, cache.row_bytes
    held, by_hand, awaited = stand.held, spared(stand.held), cache.awaited.slots(now)
    for node, old in stand.loose.items():
        slot = node.slot
        if slot is None or (node.children and slot.kind in SHARED):  # given up already, or needed
            continue
        if node in by_hand:
            at_stake = stake(node, held, row_bytes)
        else:
            at_stake = slot.stake = slot.stake or stake(node, (), row_bytes)
        if any_will_do or at_stake[1]:
            idle_s = now - slot.used_s
            agent = slot.agent or idle_s > ttl_s
            # By place: this runs a thousand times for each that is given up.
            waits = slot.number in awaited and not old
            yield Candidate(
                slot.number, slot.kind, slot.used_at, old, agent, idle_s, *at_stake, waits
            )

"""The prefix cache keeps snapshots by the tokens that led to them, within a number of bytes.

    lease = cache.lease(prompt)         # the longest kept prefix, held until close
    lease.snapshots, lease.logits       # restore these; then compute up to a boundary, and there
    lease.keep(boundary, save, logits)  # keep what a later prompt can start from
    lease.close()

Invariants, which `check` asserts (the trie and the leases have their own):
  * `bytes_kept <= bytes_max` and `slot_count <= slots_max` at every instant: room is made before
    it is filled, and nothing is given up for what will not fit after all.
  * A leaf has a slot, or a lease rests on it: rows that lead nowhere are not kept.
  * Every row takes `row_bytes`, every slot's state `state_bytes`: what is reserved is what comes.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from flm.core.prompt import BoundaryKind, Prompt
from flm.devices.device import Array
from flm.prefix.addition import Addition
from flm.prefix.eviction import RANK, SHARED, Candidate, outgrown, victim
from flm.prefix.lease import Lease, Manners, mib
from flm.prefix.tally import CAPTURES, EVICTIONS, Tally
from flm.prefix.trie import Match, Node, Slot, Trie


@dataclass(frozen=True, slots=True)
class Standing:
    """How the kept stand while room is made for an addition."""

    held: Collection[Node]  # on the way of a lease: their rows stay
    outgrown: Collection[Node]
    loose: Collection[Node]  # slots that may go, at once or when nothing depends on them


class PrefixCache:
    """`row_bytes` is what one token takes and `state_bytes` one state (0: the model has none).

    `bytes_max` 0 turns it off; `slots_max` None leaves the number of snapshots to the bytes;
    `gain_min` is the least number of tokens that a save must add, `read_min` the fewest that a
    pass may read and that are left to it therefore.
    """

    def __init__(
        self,
        *,
        bytes_max: int,
        slots_max: int | None,
        gain_min: int,
        row_bytes: int,
        state_bytes: int,
        log: Callable[[str], None],
        warn: Callable[[str], None],
        read_min: int = 1,
    ) -> None:
        self.bytes_max = bytes_max
        self.slots_max = slots_max
        self.gain_min = gain_min
        self.row_bytes = row_bytes
        self.state_bytes = state_bytes
        self.read_min = read_min
        self.log = log
        self.warn = warn
        self.trie = Trie()
        self.tally = Tally()
        self.leases: set[Lease] = set()
        self._slots: dict[int, Node] = {}  # by number, which is by age
        self._numbers = count(1)
        self._clock = count(1)

    @property
    def bytes_kept(self) -> int:
        return self.trie.bytes

    @property
    def slot_count(self) -> int:
        return len(self._slots)

    def lease(self, prompt: Prompt, *, manners: Manners = Manners.USUAL) -> Lease:
        """The longest kept prefix of `prompt`.

        Its last token is left to compute, for the logits to sample from, unless they are kept too.
        """
        length = len(prompt.tokens)
        if manners is Manners.BLIND:
            lease = Lease(self, prompt, self.trie.root(prompt.domain), 0, None, manners)
            self.leases.add(lease)
            return lease
        match = self.trie.find(prompt.domain, prompt.packed)
        node, offset = self._start_of(prompt, match)
        slot = node.slot_through() if node.parent else None
        lease = Lease(self, prompt, node, offset, slot, manners)
        if self.state_bytes:  # without, any row will do
            lease.plan_fork(match.length)
        self.leases.add(lease)
        if slot:
            slot.used_at = self.tick()
            slot.hits += 1
            self.log(f"Prefix slot {slot.number}: resuming at {offset} of {length} tokens")
        elif self.bytes_max:
            self.log(f"No saved prefix matches, prefilling {length} tokens")
        return lease

    def check(self) -> None:
        self.trie.check()
        assert self.bytes_kept <= self.bytes_max
        assert self.slots_max is None or self.slot_count <= self.slots_max
        nodes = set(self.trie.nodes())
        assert {node for node in nodes if node.slot} == set(self._slots.values())
        for number, node in self._slots.items():
            assert node.slot
            assert node.slot.number == number
            assert sum(array.nbytes for array in node.slot.state.values()) == self.state_bytes
        resting = {lease.node for lease in self.leases}
        roots = set(self.trie.roots.values())
        assert resting <= nodes | roots, "a lease rests on what is gone"
        assert all(root.children or root in resting for root in roots), "an empty domain"
        for node in nodes:
            assert node.children or node.slot or node in resting, f"leads nowhere: {node.end}"
            assert node.rows_bytes == (node.end - node.start) * self.row_bytes
        for lease in self.leases:
            lease.check()

    def _start_of(self, prompt: Prompt, match: Match) -> tuple[Node, int]:
        """Where `prompt` can start: a node, and an offset in its edge, usually its end."""
        length = len(prompt.tokens)
        assert length, "an empty prompt"
        node = match.node
        if node.end == length and node.slot and node.slot.logits is not None:
            return node, length
        furthest = max(0, length - self.read_min)
        if self.state_bytes:
            while node.parent and (node.slot is None or node.end > furthest):
                node = node.parent
            return node, node.end
        # Without state any row will do, if it leads to a slot: others go when their lease does.
        node, offset = match.child or node, min(match.length, furthest)
        while node.parent and (offset <= node.start or not node.slot_through()):
            node, offset = node.parent, min(offset, node.start)
        return node, offset

    # The rest is for leases.

    def tick(self) -> int:
        return next(self._clock)

    def put(
        self,
        node: Node,
        kind: BoundaryKind,
        used_at: int,
        state: Mapping[str, Array],
        logits: Array | None,
    ) -> None:
        """Fill a new slot at the end of `node`."""
        number = next(self._numbers)
        if number == 1:
            snapshots = "" if self.slots_max is None else f"{self.slots_max} snapshots in "
            self.log(
                f"Prefix cache: up to {snapshots}{mib(self.bytes_max)} (a saved row costs "
                f"{self.row_bytes / 2**10:.4g} KiB, a snapshot's state {mib(self.state_bytes)})"
            )
        self.trie.put(node, Slot(number, kind, used_at, state, _own(logits)))
        self._slots[number] = node
        self.tally.add(CAPTURES, kind.value)

    def renew(self, node: Node, addition: Addition, used_at: int, logits: Array | None) -> None:
        """The slot there is wanted again; if it lacks logits and they fit, it gets them."""
        slot = node.slot
        assert slot
        slot.used_at = max(slot.used_at, used_at)
        slot.kind = max(slot.kind, addition.kind, key=lambda kind: RANK[kind])
        if logits is not None and slot.logits is None and self.make_room(addition):
            self.trie.put(node, replace(self.trie.take(node), logits=_own(logits)))

    def make_room(self, addition: Addition) -> bool:
        """Give up others, in order, until it fits; none of them if it never will."""
        standing = self._standing(addition)
        if not self._can_fit(addition, standing):
            return False
        while True:
            match = self.trie.find(addition.domain, addition.tokens)
            lacks_bytes = self.bytes_kept + addition.bytes(match) > self.bytes_max
            lacks_slot = self._over(self.slot_count + addition.slots(match))
            if not (lacks_bytes or lacks_slot):
                return True
            going = victim(self._candidates(standing, any_will_do=lacks_slot))
            assert going, "fits, but there is nothing left to give up"
            self._give_up(going)

    def prune(self, node: Node) -> None:
        """Remove the rows that lead to `node` and nowhere else."""
        while not (node.children or node.slot or any(each.node is node for each in self.leases)):
            if node.parent is None:
                self.trie.uproot(node)
                return
            self.trie.remove(node)
            node = node.parent

    def _standing(self, addition: Addition) -> Standing:
        node = self.trie.find(addition.domain, addition.tokens).node
        below = node if node.end < addition.offset else node.parent
        assert below
        slots = self._slots.values()
        old = outgrown(slots, addition.kind, below)
        held = {node for lease in self.leases for node in lease.node.path()}
        reading = {lease.node for lease in self.leases if lease.kept_at is None}
        loose = {
            node
            for node in slots
            if node not in reading and (node in old or not (node in held or addition.modest))
        }
        return Standing(held, old, loose)

    def _can_fit(self, addition: Addition, standing: Standing) -> bool:
        """Whether it would, with all that is loose given up."""
        match = self.trie.find(addition.domain, addition.tokens)
        if match.child not in standing.held:
            match = Match(match.node, None, match.node.end)
        stuck = [node for node in self._slots.values() if node not in standing.loose]
        bytes_stuck = sum(node.end - node.start for node in standing.held) * self.row_bytes
        bytes_stuck += sum(node.slot.bytes for node in stuck if node.slot)
        fits = bytes_stuck + addition.bytes(match) <= self.bytes_max
        return fits and not self._over(len(stuck) + addition.slots(match))

    def _over(self, slots: int) -> bool:
        return self.slots_max is not None and slots > self.slots_max

    def _candidates(self, standing: Standing, *, any_will_do: bool) -> Iterator[Candidate]:
        """Slots that may go now; where bytes are lacking, only those that free some."""
        for number, node in self._slots.items():
            slot = node.slot
            assert slot
            if node not in standing.loose or (slot.kind in SHARED and node.children):
                continue
            frees_rows = not node.children and node not in standing.held
            if any_will_do or frees_rows or slot.bytes:
                yield Candidate(number, slot.kind, slot.used_at, node in standing.outgrown)

    def _give_up(self, going: Candidate) -> None:
        node = self._slots.pop(going.number)
        # FastFlowLM's word for all that is not shared: it ends what was a whole prompt, or nearly.
        kind = going.kind.value if going.kind in SHARED else "end"
        which = "an outgrown" if going.outgrown else "the least recently used"
        self.log(f"Prefix cache: dropping {which} {kind} snapshot ({node.end} tokens)")
        self.tally.add(EVICTIONS, "host", going.kind.value)
        self.trie.take(node)
        self.prune(node)


def _own(logits: Array | None) -> Array | None:
    """A copy that nobody writes to: requests share it."""
    if logits is not None:
        logits = logits.copy()
        logits.flags.writeable = False
    return logits

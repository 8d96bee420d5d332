"""The prefix cache keeps snapshots by the tokens that led to them, within a number of bytes.

    lease = cache.lease(prompt)         # the longest kept prefix, held until close
    lease.snapshots, lease.logits       # restore these; then compute up to a boundary, and there
    lease.keep(boundary, save, logits)  # keep what a later prompt can start from
    lease.close()

Invariants, which `check` asserts (the trie and the leases have their own):
  * `bytes_kept + bytes_coming <= bytes_max` and `slot_count <= slots_max` at every instant: room
    is made before it is filled, and nothing is given up for what will not fit after all.
  * A leaf has a slot, or a lease rests on it: rows that lead nowhere are not kept.
  * Every row takes `row_bytes`, every slot's state `state_bytes`: what is reserved is what comes.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING

from flm.core.finding import Fate, FateKind, Finding
from flm.core.prompt import BoundaryKind, Prompt
from flm.devices.device import Array
from flm.prefix.addition import Addition
from flm.prefix.awaited import Awaited
from flm.prefix.disk.tier import DiskTier
from flm.prefix.eviction import Policy, flm
from flm.prefix.fetch import Fetch, begin_fetch
from flm.prefix.ghosts import Ghosts, Sighting, beyond, found
from flm.prefix.lease import Lease, Manners, mib
from flm.prefix.moves import Move, Moved, Watch
from flm.prefix.room import left_bytes, make_room
from flm.prefix.spill import begin_spill, flush
from flm.prefix.tally import CAPTURES, Tally, count_unused, count_used
from flm.prefix.trie import TOKEN_BYTES, Match, Node, Slot, Trie

if TYPE_CHECKING:
    from flm.prefix.left import Left

INTERACTIVE_TTL_S = 300.0


class PrefixCache:
    """`row_bytes` is what one token takes and `state_bytes` one state (0: the model has none).

    `bytes_max` 0 turns it off; `slots_max` None leaves the number of snapshots to the bytes;
    `gain_min` is the least number of tokens that a save must add; `read_min` the fewest that a
    pass may read, and that are left to it therefore; `first_min` the fewest that the first may end
    at; `grid`: with state, nothing is kept but at multiples of it. `ghosts_max` bounds, in bytes,
    what is known of prompts that are not kept. `transit`: memory is only the way to the disk.
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
        first_min: int = 1,
        grid: int = 1,
        policy: Policy = flm,
        interactive_ttl_s: float = INTERACTIVE_TTL_S,
        ghosts_max: int = 0,
        disk: DiskTier | None = None,
        transit: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bytes_max = bytes_max
        self.slots_max = slots_max
        self.gain_min = gain_min
        self.row_bytes = row_bytes
        self.state_bytes = state_bytes
        self.read_min = read_min
        self.first_min = first_min
        self.grid = grid if state_bytes else 1
        self.log = log
        self.warn = warn
        self.policy = policy
        self.interactive_ttl_s = interactive_ttl_s
        self.disk = disk
        self.transit = transit
        self.left: Left | None = None  # what other models left, within the same budget
        self.clock = clock
        self.trie = Trie()
        self.ghosts = Ghosts(ghosts_max)
        self.tally = Tally()
        self.watch: Watch | None = None
        self.awaited = Awaited(self.tally)
        self.leases: set[Lease] = set()
        self.fetches: list[Fetch] = []
        self.bytes_coming = 0  # reserved for what is on its way from the disk
        self.slots: dict[int, Node] = {}  # by number, which is by age
        self._doomed: set[Node] = set()
        self._numbers = count(1)
        self._ticks = count(1)
        self.ticked = 0
        self.settled_at = -1  # the tick when there was nothing to write
        self.offer_s = math.inf  # when what the disk refused is offered again

    @property
    def bytes_kept(self) -> int:
        return self.trie.bytes

    @property
    def slot_count(self) -> int:
        return len(self.slots)

    def lease(
        self, prompt: Prompt, *, manners: Manners = Manners.USUAL, agent: bool = False
    ) -> Lease:
        """The longest kept prefix of `prompt`.

        Its last token is left to compute, for the logits to sample from, unless they are kept too.
        """
        if manners is Manners.BLIND:
            return self.hold(prompt, self.trie.root(prompt.domain), manners)
        match, seen_before = self.trie.find(prompt.domain, prompt.packed), self.ghosts.see(prompt)
        node, offset = self.start_of(prompt, match)
        slot, length = node.slot_through() if node.parent else None, len(prompt.tokens)
        usual = manners is Manners.USUAL
        if usual:
            self.awaited.went_on(prompt, self.clock())
        if slot:
            agent = agent if usual else slot.agent  # idle work: as whoever will go on from there
            self.trie.use(self.slots[slot.number], slot.kind, self.tick())
            slot.used_s = self.clock()
            slot.agent = slot.agent and agent
        lease = Lease(self, prompt, node, offset, slot, manners, agent=agent)
        self.leases.add(lease)
        if self.state_bytes:  # without, any row will do
            lease.plan_fork(max(match.length, seen_before.seen))
        if slot and usual:
            slot.hits += 1
            count_used(self.tally, self.slots[slot.number], offset)
            self.log(f"Prefix slot {slot.number}: resuming at {offset} of {length} tokens")
        elif self.bytes_max and usual:
            self.log(f"No saved prefix matches, prefilling {length} tokens")
        if self.bytes_max and usual and length - offset >= self.gain_min:
            sightings = [_kept(match), seen_before]
            lease.finding = self._found(prompt, offset, "host" if slot else None, sightings)
        return lease

    def hold(self, prompt: Prompt, node: Node, manners: Manners = Manners.USUAL) -> Lease:
        """A lease that starts from nothing, and on which what leads to `node` stays."""
        lease = Lease(self, prompt, node, 0, None, manners)
        self.leases.add(lease)
        return lease

    def called(self, prompt: Prompt, tools: Collection[str]) -> None:
        """The reply to `prompt` has ended, and called `tools`: the next prompt brings what they
        say, which `came` is told at once, and `lease` once it has a lane.
        """
        kept = None
        if prompt.domain in self.trie.roots:
            way = self.trie.find(prompt.domain, prompt.packed).node.path()
            slots = (node.slot for node in way if node.slot)
            kept = next((each.number for each in slots if each.kind is not BoundaryKind.END), None)
        self.awaited.called(prompt, tools, kept, self.clock())

    def came(self, prompt: Prompt) -> None:
        """It has arrived, and waits for a lane."""
        self.awaited.came(prompt, self.clock())

    def look(self, prompt: Prompt) -> Finding:
        """What is known of `prompt`, and nothing is changed by asking."""
        offset, sightings = 0, [self.ghosts.find(prompt)]
        if prompt.domain in self.trie.roots:
            match = self.trie.find(prompt.domain, prompt.packed)
            _, offset = self.start_of(prompt, match)
            sightings.insert(0, _kept(match))
        tier = "host" if offset else None
        stored = self.disk.store.find(prompt.domain, prompt.packed) if self.disk else None
        if stored and stored.offset > offset:
            offset, tier = stored.offset, "disk"
        return self._found(prompt, offset, tier, sightings)

    def condemn(self, lease: Lease) -> None:
        """What it starts from cannot be restored: close it, and let nobody else try."""
        slot = lease.slot
        assert slot, "nothing to restore"
        lease.close()
        node = self.slots.get(slot.number)
        if node is None:
            return
        tokens, domain = self.way_of(node)
        self.ghosts.note(domain, tokens, Fate(FateKind.BROKEN, node.end, slot.kind))
        if self.disk:
            self.disk.remove(domain, tokens)
        self._doom(node)
        self.reap()

    def clear(self, domain: str | None = None) -> int:
        """Give up what is kept, of one domain or of all; how many snapshots that were.

        What a request is using goes when it is done, and what is on disk by `clear_disk`.
        """
        mine = [node for node in self.slots.values() if domain in (None, self.way_of(node)[1])]
        for node in mine:
            if node.slot and node.slot.writing:
                node.slot.writing.cancel()
            self._doom(node)
        self.reap()
        for fetch in self.fetches:
            if domain in (None, fetch.lease.prompt.domain):
                fetch.void()
        self.ghosts.forget(domain)
        self.awaited.forget(domain)
        return len(mine) + (self.left.clear(domain) if self.left else 0)

    def clear_disk(self, domain: str | None = None) -> int:
        """The same, after `clear`, on a thread that may wait for the disk."""
        return self.disk.store.clear(domain) if self.disk else 0

    # The disk tier: nothing here waits for it.

    def fetch(self, prompt: Prompt, tokens_per_s: float | None) -> Fetch | None:
        """Begin to read from disk what is deeper there, if that is faster than reading anew.

        `tokens_per_s` None: not known yet, so anything is.
        """
        return begin_fetch(self, prompt, tokens_per_s)

    def spill(self, *, all_of_it: bool = False) -> bool:
        """Begin to write one more snapshot to the disk, if it is time to; whether it did.

        Lazily: only once memory is half full, or when `all_of_it` is to be safe.
        """
        return begin_spill(self, all_of_it=all_of_it)

    def when_landed(self, wake: Callable[[], None]) -> None:
        """`wake` is called, on any thread, when something has come from the disk or is there."""
        if self.disk:
            self.disk.notify = wake

    def close(self, within_s: float) -> None:
        """Write what the disk lacks, for as long as that, and let go of all."""
        if self.disk:
            flush(self, self.disk)
            self.disk.close(within_s=within_s)

    def check(self) -> None:
        self.trie.check()
        assert self.bytes_kept + self.bytes_coming + left_bytes(self) <= self.bytes_max
        assert self.bytes_coming == sum(fetch.bytes_reserved for fetch in self.fetches)
        self.ghosts.check()
        self.awaited.check()
        assert self.slots_max is None or self.slot_count <= self.slots_max
        nodes = set(self.trie.nodes())
        assert {node for node in nodes if node.slot} == set(self.slots.values())
        for number, node in self.slots.items():
            assert node.slot
            assert node.slot.number == number
            assert sum(array.nbytes for array in node.slot.state.values()) == self.state_bytes
        assert self._doomed == {node for node in nodes if node.slot and node.slot.doomed}
        resting = {lease.node for lease in self.leases}
        roots = set(self.trie.roots.values())
        assert resting <= nodes | roots, "a lease rests on what is gone"
        assert all(root.children or root in resting for root in roots), "an empty domain"
        for node in nodes:
            assert node.children or node.slot or node in resting, f"leads nowhere: {node.end}"
            assert node.rows_bytes == (node.end - node.start) * self.row_bytes
        for lease in self.leases:
            lease.check()

    def _found(
        self, prompt: Prompt, offset: int, tier: str | None, sightings: Iterable[Sighting]
    ) -> Finding:
        return found(prompt, offset=offset, tier=tier, gain_min=self.gain_min, sightings=sightings)

    def start_of(self, prompt: Prompt, match: Match) -> tuple[Node, int]:
        """Where `prompt` can start: a node, and an offset in its edge, usually its end."""
        length = len(prompt.tokens)
        assert length, "an empty prompt"
        if length < self.first_min:
            return self.trie.root(prompt.domain), 0
        node = match.node
        slot = node.slot
        if node.end == length and slot and slot.logits is not None and not slot.doomed:
            return node, length
        furthest = max(0, length - self.read_min)
        if self.state_bytes:
            while node.parent and (not node.serves or node.end > furthest):
                node = node.parent
            return node, node.end
        # Without state any row will do, if it leads to a slot: others go when their lease does.
        node, offset = match.child or node, min(match.length, furthest)
        while node.parent and (offset <= node.start or not node.slot_through()):
            node, offset = node.parent, min(offset, node.start)
        return node, offset

    # The rest is for leases.

    def tick(self) -> int:
        self.ticked = next(self._ticks)
        return self.ticked

    def put(
        self,
        node: Node,
        kind: BoundaryKind,
        used_at: int,
        state: Mapping[str, Array],
        logits: Array | None,
        agent: bool = False,
    ) -> Slot:
        """Fill a new slot at the end of `node`."""
        number = next(self._numbers)
        if number == 1:
            snapshots = "" if self.slots_max is None else f"{self.slots_max} snapshots in "
            self.log(
                f"Prefix cache: up to {snapshots}{mib(self.bytes_max)} (a saved row costs "
                f"{self.row_bytes / 2**10:.4g} KiB, a snapshot's state {mib(self.state_bytes)})"
            )
        now, own = self.clock(), None if logits is None else _own(logits)
        slot = Slot(number, kind, used_at, state, own, used_s=now, made_s=now, agent=agent)
        self.trie.put(node, slot)
        self.slots[number] = node
        self.tally.add(CAPTURES, kind.value)
        self.told(Moved.KEPT, self.way_of(node)[1], kind, node.end)
        return slot

    def renew(self, node: Node, addition: Addition, used_at: int, logits: Array | None) -> None:
        """The slot there is wanted again; if it lacks logits and they fit, it gets them."""
        slot = node.slot
        assert slot
        self.trie.use(node, addition.kind, used_at)
        slot.used_s = self.clock()
        if logits is not None and slot.logits is None and self.make_room(addition):
            self.trie.put_logits(node, _own(logits))
            slot.on_disk = False

    def make_room(self, addition: Addition) -> bool:
        """Give up others, in order, until it fits; none of them if it never will."""
        return make_room(self, addition)

    def drop(self, node: Node, why: Moved = Moved.FORGOTTEN) -> None:
        """Keep it no longer; the rows that lead to it alone go too."""
        domain, slot = self.way_of(node)[1], self.trie.take(node)
        self._doomed.discard(node)
        del self.slots[slot.number]
        count_unused(self.tally, slot)
        self.prune(node)
        self.told(why, domain, slot.kind, node.end)

    def told(self, what: Moved, domain: str, kind: BoundaryKind, offset: int) -> None:
        """To who watches."""
        if self.watch:
            self.watch(Move(domain, what, kind, offset, self.bytes_kept))

    def prune(self, node: Node) -> None:
        """Remove the rows that lead to `node` and nowhere else."""
        while not (node.children or node.slot or any(each.node is node for each in self.leases)):
            if node.parent is None:
                self.trie.uproot(node)
                return
            self.trie.remove(node)
            node = node.parent

    def _doom(self, node: Node) -> None:
        assert node.slot
        node.slot.doomed = True
        self._doomed.add(node)

    def reap(self) -> None:
        """Drop what is doomed and in use no longer."""
        for node in list(self._doomed):
            slot = node.slot
            used = any(one.node is node or one.slot is slot for one in self.leases)
            if slot and not (used or slot.writing):
                self.drop(node)

    def way_of(self, node: Node) -> tuple[bytes, str]:
        """The tokens that lead to it, packed, and its domain."""
        path = list(node.path())
        root = path[-1].parent if path else node
        domain = next(name for name, each in self.trie.roots.items() if each is root)
        return b"".join(each.tokens for each in reversed(path)), domain


def _kept(match: Match) -> Sighting:
    """What the trie knows of the prompt that led there."""
    node = match.child or match.node
    theirs = beyond(node, (match.length - node.start) * TOKEN_BYTES)
    return Sighting(match.length, match.length, theirs)


def _own(logits: Array) -> Array:
    """A copy that nobody writes to: requests share it."""
    logits = logits.copy()
    logits.flags.writeable = False
    return logits

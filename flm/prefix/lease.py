"""A lease is a kept prefix in use, and the way to keep more of the same prompt.

First it is restored from, then it keeps. While it is open nothing on the prompt's way down the
trie goes, except what the prompt itself outgrows once it keeps.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from flm.core.finding import Fate, FateKind, Finding
from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.core.sizes import MIB, counted
from flm.devices.device import Array
from flm.memory.arrays import reuse
from flm.memory.snapshot import Snapshot
from flm.prefix.addition import Addition
from flm.prefix.room import has_room
from flm.prefix.tally import SKIPS
from flm.prefix.trie import TOKEN_BYTES, Match, Node, Slot

if TYPE_CHECKING:
    from flm.prefix.cache import PrefixCache

Save = Callable[[int, int], Snapshot]  # (start, end) -> rows of [start, end), state at end
Saved = tuple[Node, Mapping[str, Array]]  # where the rows are, and the state at its end
FORKS_MAX = 4  # of one prompt, beside the boundaries it came with


class Manners(Enum):
    """What a lease may take and leave."""

    USUAL = "usual"
    MODEST = "modest"  # what it keeps pushes nothing out but what it outgrows
    BLIND = "blind"  # starts from nothing and keeps nothing


class Lease:
    """`offset` tokens need no computing; all of them only if there are `logits` of the last.

    `boundaries` are where it is to be kept: those of its prompt, and forks, far enough apart.
    """

    def __init__(
        self,
        cache: "PrefixCache",
        prompt: Prompt,
        node: Node,
        offset: int,
        slot: Slot | None,
        manners: Manners = Manners.USUAL,
        *,
        agent: bool = False,
    ) -> None:
        self.prompt = prompt
        self.offset = offset
        self.slot = slot  # it resumes there
        self.kind = slot.kind if slot else None
        self.logits = slot.logits if slot and offset == len(prompt.tokens) else None
        self.manners = manners
        self.agent = agent
        self.boundaries = self._apart(_on_grid(prompt.boundaries, cache.grid), offset, cache)
        self.finding: Finding | None = None  # what was known of the prompt when it was opened
        self.node = node  # where it rests: this one and all above it stay
        self.kept_at: int | None = None  # None: may still be restored from
        self.kept_to = offset  # what it has added ends there
        self._cache = cache
        self._past = f" past slot {slot.number}" if slot else ""
        self._said: set[str] = set()

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """From 0 to `offset`, to restore in order. They are views: let go of them after that."""
        assert self.kept_at is None, "restore before keeping"
        return self.way(self.offset)

    def way(self, offset: int) -> tuple[Snapshot, ...]:
        """What is kept of the way to `offset`, where it rests or above. They are views."""
        none: Mapping[str, Array] | None = None if self._cache.state_bytes else {}
        snapshots = []
        for node in self.node.path():
            if node.start < offset:  # else its edge was split since
                end = min(node.end, offset)
                rows = {name: array[:, : end - node.start] for name, array in node.rows.items()}
                state = node.slot.state if node.slot else none
                snapshots.append(Snapshot(node.start, end, rows, state))
        return tuple(reversed(snapshots))

    @property
    def pays(self) -> bool:
        """Whether reading the rest gives something to keep that is not kept yet, and has room."""
        cache, least = self._cache, self.offset + max(1, self._cache.gain_min)
        lacking = (each for each in self.boundaries if each.offset >= least and self._lacks(each))
        return any(has_room(cache, self._addition(each), self) for each in lacking)

    def could_keep(self, boundary: Boundary) -> bool:
        """Whether the budget, and its manners, allow that at all."""
        return self.manners is not Manners.BLIND and self._bytes(boundary) <= self._cache.bytes_max

    @property
    def cuts(self) -> tuple[int, ...]:
        """Offsets that a pass must end at, for the state that is only there then."""
        if not self._cache.state_bytes:
            return ()
        return tuple(each.offset for each in self.boundaries if self._adds(each))

    def cut_before(self, offset: int) -> int:
        """The last place up to there where it can be kept."""
        return offset - offset % self._cache.grid

    def plan_fork(self, offset: int) -> bool:
        """Another prompt parts from this one at `offset`: keep it there too, if it adds enough."""
        offset, length, cache = self.cut_before(offset), len(self.prompt.tokens), self._cache
        before = [each.offset for each in self.boundaries if each.offset <= offset]
        gain = offset - max([self.offset, *before])
        forks = [each for each in self.boundaries if each.kind is BoundaryKind.FORK]
        if len(forks) >= FORKS_MAX or self.manners is Manners.BLIND:
            return False
        if gain < max(cache.gain_min, cache.read_min) or length - offset < cache.read_min:
            return False
        fork = Boundary(offset, BoundaryKind.FORK)
        planned = sorted([*self.boundaries, fork], key=lambda each: each.offset)
        self.boundaries = self._apart(planned, self.offset, cache)
        return fork in self.boundaries

    def plan_forks_of(self, before: "Lease") -> None:
        """Of the one that this takes the place of: others wait for them."""
        for boundary in before.boundaries:
            if boundary.kind is BoundaryKind.FORK:
                self.plan_fork(boundary.offset)

    def wants(self, boundary: Boundary) -> bool:
        """The save rule: whether a save there adds enough to what was kept before this request.

        Its own boundaries thus never skip each other. What is skipped is logged, once.
        """
        gain, gain_min = boundary.offset - self.offset, self._cache.gain_min
        if gain <= 0 or self.manners is Manners.BLIND or self._too_long(boundary):
            return False
        if self._adds(boundary):
            return True
        if boundary == self.prompt.boundaries[-1]:
            self._skip(
                self._cache.log,
                FateKind.SMALL_GAIN,
                boundary,
                f"Prefix cache: not saved, only {counted(gain, 'token')}{self._past} "
                f"(needs {gain_min}, --prefix-min-gain)",
            )
        return False

    def keep(self, boundary: Boundary, save: Save, logits: Array | None = None) -> bool:
        """Keep the prompt up to `boundary`; `logits` [vocabulary] are those of its last token.

        Makes room first, then calls `save` for what is not kept yet, if anything; when that raises,
        nothing is kept. False: there is no room.
        """
        cache = self._cache
        assert self in cache.leases, "kept after close"
        if self._too_long(boundary):
            return False
        if self.kept_at is None:
            self.kept_at = cache.tick()
        self._rest()
        addition = self._addition(boundary, logits)
        match = cache.trie.find(addition.domain, addition.tokens)
        if not addition.slots(match):
            cache.renew(match.node, addition, self.kept_at, logits)
        elif saved := self._saved(addition, match, save):
            node, state = saved
            slot = cache.put(node, addition.kind, self.kept_at, state, logits, self.agent)
            if addition.modest:
                slot.ahead = max(0, addition.offset - self.kept_to)
                cache.awaited.grew(self.prompt, slot.number)
            self.kept_to = max(self.kept_to, addition.offset)
            self._rest()
        else:
            self._skip(
                cache.log,
                FateKind.NO_ROOM,
                boundary,
                f"Prefix cache: not saved, no room for {boundary.offset} tokens "
                "beside the snapshots in use",
            )
            return False
        return True

    def note_read(self, computed: int) -> None:
        """Its prompt was read up to there: a later one may ask how much of it was."""
        self._cache.ghosts.note_read(self.prompt, computed)

    def note_unreached(self, computed: int, why: FateKind) -> None:
        """It was read up to there only, now or before: a later one may ask why no more is kept."""
        if self.manners is not Manners.USUAL:
            return
        ghosts = self._cache.ghosts
        read = max(computed, ghosts.find(self.prompt).read)
        for each in self.boundaries:
            if each.offset > read:
                fate = Fate(why, each.offset, each.kind)
                ghosts.note(self.prompt.domain, self._tokens(each.offset), fate)

    def close(self) -> None:
        assert self in self._cache.leases, "closed twice"
        self._cache.leases.remove(self)
        self._cache.prune(self.node)
        self._cache.reap()

    def check(self) -> None:
        assert self.node.end <= len(self.prompt.tokens) or self.kept_at is None
        way = b"".join(node.tokens for node in reversed(list(self.node.path())))
        covered = self.offset if self.kept_at is None else self.node.end
        assert way.startswith(self._tokens(covered)), "off its prompt's way"
        if self.kept_at is None and self.offset:
            assert self.snapshots[-1].state is not None, "nothing left to restore from"

    def _saved(self, addition: Addition, match: Match, save: Save) -> Saved | None:
        """What is not kept yet, in room made for it; None: there is none."""
        if being_written(match.child):
            return None
        # To cut an edge takes of that room for a moment, so what was given up has to be returned.
        with nullcontext() if match.child else reuse():
            return self._save(addition, save) if self._cache.make_room(addition) else None

    def _save(self, addition: Addition, save: Save) -> Saved:
        trie = self._cache.trie
        match = trie.find(addition.domain, addition.tokens)
        start = addition.start(match)
        node = trie.split(match.child, match.length) if match.child else match.node
        if start == addition.offset:
            return node, {}
        snapshot = save(start, addition.offset)
        assert (snapshot.start, snapshot.end) == (start, addition.offset), "saved something else"
        assert snapshot.state is not None, "saved without state"
        if node.end < addition.offset:
            node = trie.grow(node, addition.tokens[node.end * TOKEN_BYTES :], snapshot.rows)
        return node, snapshot.state

    def _rest(self) -> None:
        """On the deepest node of the prompt's way: all that it can use, and not a row more."""
        match = self._cache.trie.find(self.prompt.domain, self.prompt.packed)
        before, self.node = self.node, match.node
        self._cache.prune(before)

    def _addition(self, boundary: Boundary, logits: Array | None = None) -> Addition:
        return Addition(
            domain=self.prompt.domain,
            tokens=self._tokens(boundary.offset),
            kind=boundary.kind,
            row_bytes=self._cache.row_bytes,
            state_bytes=self._cache.state_bytes,
            logits_bytes=0 if logits is None else logits.nbytes,
            modest=self.manners is Manners.MODEST,
        )

    def _tokens(self, offset: int) -> bytes:
        return self.prompt.packed[: offset * TOKEN_BYTES]

    def _bytes(self, boundary: Boundary) -> int:
        return boundary.offset * self._cache.row_bytes + self._cache.state_bytes

    def _too_long(self, boundary: Boundary) -> bool:
        """Whether it would not fit into an empty cache; if so, says it of the whole prompt."""
        cache, length = self._cache, len(self.prompt.tokens)
        if self._bytes(boundary) <= cache.bytes_max:
            return False
        if cache.bytes_max:
            needed = mib(length * cache.row_bytes + cache.state_bytes)
            self._skip(
                cache.warn,
                FateKind.TOO_LONG,
                boundary,
                f"Prefix cache: a {length}-token prompt needs {needed}, more than "
                f"--prefix-cache-mb ({mib(cache.bytes_max)}); it is not saved. "
                "Raise --prefix-cache-mb to reuse prompts this long.",
            )
        return True

    def _skip(
        self, log: Callable[[str], None], why: FateKind, boundary: Boundary, line: str
    ) -> None:
        """Said and counted once."""
        if line not in self._said:
            self._said.add(line)
            cache, tokens = self._cache, self._tokens(boundary.offset)
            cache.tally.add(SKIPS, why.value)
            fate = Fate(why, boundary.offset, boundary.kind)
            cache.ghosts.note(self.prompt.domain, tokens, fate)
            log(line)

    def _adds(self, boundary: Boundary) -> bool:
        """Enough tokens to keep it; what is kept already costs nothing to renew."""
        gain = boundary.offset - self.offset
        if gain <= 0 or gain >= self._cache.gain_min:
            return gain > 0
        return not self._lacks(boundary)

    def _lacks(self, boundary: Boundary) -> bool:
        """Whether no snapshot is kept there."""
        addition = self._addition(boundary)
        return bool(addition.slots(self._cache.trie.find(addition.domain, addition.tokens)))

    def _apart(
        self, boundaries: Sequence[Boundary], start: int, cache: "PrefixCache"
    ) -> tuple[Boundary, ...]:
        """Those with `read_min` tokens before each (`first_min` from the prompt's first) and after
        each, the later of two preferred.
        """
        kept: list[Boundary] = []
        after, read_min = len(self.prompt.tokens), cache.read_min
        first = max(start + read_min, cache.first_min)
        for each in reversed(boundaries):
            room = after - each.offset >= read_min or each.offset == len(self.prompt.tokens)
            if room and each.offset >= first:
                kept.insert(0, each)
                after = each.offset
        return tuple(kept)


def _on_grid(boundaries: Sequence[Boundary], grid: int) -> Sequence[Boundary]:
    """Each at the last multiple up to it; of several there the first, which most prompts share."""
    found: dict[int, Boundary] = {}
    for each in boundaries:
        offset = each.offset - each.offset % grid
        if offset:
            found.setdefault(offset, replace(each, offset=offset))
    return tuple(found.values())


def mib(size: int) -> str:
    """As FastFlowLM's lines have it: no commas."""
    return f"{size / MIB:.0f} MiB"


def being_written(edge: Node | None) -> bool:
    """Whether to cut that edge would hold its rows twice, for as long as a write takes."""
    return edge is not None and any(node.slot and node.slot.writing for node in edge.below())

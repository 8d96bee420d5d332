"""A lease is a kept prefix in use, and the way to keep more of the same prompt.

First it is restored from, then it keeps. While it is open nothing on the prompt's way down the
trie goes, except what the prompt itself outgrows once it keeps.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from flm.core.prompt import Boundary, Prompt
from flm.core.sizes import MIB
from flm.devices.device import Array
from flm.memory.snapshot import Snapshot
from flm.prefix.addition import Addition
from flm.prefix.trie import TOKEN_BYTES, Node, Slot

if TYPE_CHECKING:
    from flm.prefix.cache import PrefixCache

Save = Callable[[int, int], Snapshot]  # (start, end) -> rows of [start, end), state at end


class Lease:
    """`offset` tokens need no computing; all of them only if there are `logits` of the last."""

    def __init__(
        self, cache: "PrefixCache", prompt: Prompt, node: Node, offset: int, slot: Slot | None
    ) -> None:
        self.prompt = prompt
        self.offset = offset
        self.logits = slot.logits if slot and offset == len(prompt.tokens) else None
        self.node = node  # where it rests: this one and all above it stay
        self.kept_at: int | None = None  # None: may still be restored from
        self._cache = cache
        self._past = f" past slot {slot.number}" if slot else ""
        self._said: set[str] = set()

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """From 0 to `offset`, to restore in order. They are views: let go of them after that."""
        assert self.kept_at is None, "restore before keeping"
        none: Mapping[str, Array] | None = None if self._cache.state_bytes else {}
        snapshots = []
        for node in self.node.path():
            if node.start < self.offset:  # else its edge was split since
                end = min(node.end, self.offset)
                rows = {name: array[:, : end - node.start] for name, array in node.rows.items()}
                state = node.slot.state if node.slot else none
                snapshots.append(Snapshot(node.start, end, rows, state))
        return tuple(reversed(snapshots))

    def wants(self, boundary: Boundary) -> bool:
        """The save rule: whether a save there adds enough to what was kept before this request.

        Its own boundaries thus never skip each other. What is skipped is logged, once.
        """
        gain, gain_min = boundary.offset - self.offset, self._cache.gain_min
        if gain <= 0 or self._too_long(boundary):
            return False
        addition = self._addition(boundary)
        if gain >= gain_min or not addition.slots(self._cache.trie.find(addition.tokens)):
            return True
        if boundary == self.prompt.boundaries[-1]:
            self._say(
                self._cache.log,
                f"Prefix cache: not saved, only {gain} tokens{self._past} "
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
        match = cache.trie.find(addition.tokens)
        if not addition.slots(match):
            cache.renew(match.node, addition, self.kept_at, logits)
        elif cache.make_room(addition):
            node, state = self._save(addition, save)
            cache.put(node, addition.kind, self.kept_at, state, logits)
            self._rest()
        else:
            self._say(
                cache.log,
                f"Prefix cache: not saved, no room for {boundary.offset} tokens "
                "beside the snapshots in use",
            )
            return False
        return True

    def close(self) -> None:
        assert self in self._cache.leases, "closed twice"
        self._cache.leases.remove(self)
        self._cache.prune(self.node)

    def check(self) -> None:
        assert self.node.end <= len(self.prompt.tokens) or self.kept_at is None
        way = b"".join(node.tokens for node in reversed(list(self.node.path())))
        covered = self.offset if self.kept_at is None else self.node.end
        assert way.startswith(self._tokens(covered)), "off its prompt's way"
        if self.kept_at is None and self.offset:
            assert self.snapshots[-1].state is not None, "nothing left to restore from"

    def _save(self, addition: Addition, save: Save) -> tuple[Node, Mapping[str, Array]]:
        """What is not kept yet, into the room that was made: the node and the state at its end."""
        trie = self._cache.trie
        match = trie.find(addition.tokens)
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
        before, self.node = self.node, self._cache.trie.find(self.prompt.packed).node
        self._cache.prune(before)

    def _addition(self, boundary: Boundary, logits: Array | None = None) -> Addition:
        return Addition(
            tokens=self._tokens(boundary.offset),
            kind=boundary.kind,
            row_bytes=self._cache.row_bytes,
            state_bytes=self._cache.state_bytes,
            logits_bytes=0 if logits is None else logits.nbytes,
        )

    def _tokens(self, offset: int) -> bytes:
        return self.prompt.packed[: offset * TOKEN_BYTES]

    def _too_long(self, boundary: Boundary) -> bool:
        """Whether it would not fit into an empty cache; if so, says it of the whole prompt."""
        cache, length = self._cache, len(self.prompt.tokens)
        if boundary.offset * cache.row_bytes + cache.state_bytes <= cache.bytes_max:
            return False
        if cache.bytes_max:
            needed = mib(length * cache.row_bytes + cache.state_bytes)
            self._say(
                cache.warn,
                f"Prefix cache: a {length}-token prompt needs {needed}, more than "
                f"--prefix-cache-mb ({mib(cache.bytes_max)}); it is not saved. "
                "Raise --prefix-cache-mb to reuse prompts this long.",
            )
        return True

    def _say(self, log: Callable[[str], None], line: str) -> None:
        """Once."""
        if line not in self._said:
            self._said.add(line)
            log(line)


def mib(size: int) -> str:
    """As FastFlowLM's lines have it: no commas."""
    return f"{size / MIB:.0f} MiB"

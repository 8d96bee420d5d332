"""Ghosts: token ids of prompts seen lately, without memory, how far these were read, and what
became of their snapshots.

So that "evicted" and "never captured" are known, not guessed, and nothing is said to have been read
that was only seen. Each domain has a trie of its own.

Invariants, which `check` asserts:
  * `bytes_held <= bytes_max` after every call: the prompt seen longest ago goes first.
  * A leaf ends a prompt; a node between has at least two children, so an edge is as long as it can.
  * A node has the fates of the offsets on its edge, (end of its parent, its own end].
  * Where something of an edge was read, all above it was.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, Self

from flm.core.alike import common_length
from flm.core.finding import Fate, Finding
from flm.core.prompt import Prompt
from flm.prefix.trie import TOKEN_BYTES

NODE_BYTES = 640  # what a node takes beside its tokens, about
FATE_BYTES = 320
THEIRS_MAX = 16_384  # tokens of the likest earlier prompt that a finding carries


@dataclass(frozen=True, slots=True)
class Sighting:
    """What earlier prompts have in common with one, as far as one trie knows."""

    seen: int = 0  # tokens
    read: int = 0  # of these
    theirs: bytes = b""  # how the youngest of the likest goes on, packed
    fates: tuple[Fate, ...] = ()  # on the way there, rising by offset


def found(
    prompt: Prompt,
    *,
    offset: int,
    tier: str | None,
    gain_min: int,
    sightings: Iterable[Sighting],
) -> Finding:
    """The finding that the sightings of all tries come to."""
    sightings = list(sightings)
    most = max(sightings, key=lambda one: one.seen, default=Sighting())
    seen = max(most.seen, offset)
    read = max([offset, *(one.read for one in sightings)])
    theirs = most.theirs if most.seen == seen else b""
    fates = {fate.offset: fate for one in sightings for fate in one.fates}
    between = tuple(fates[at] for at in sorted(fates) if offset < at <= seen)
    return Finding(prompt, offset, tier, seen, read, theirs, between, gain_min)


class TokenNode(Protocol):
    """Of a trie over packed tokens: the nodes of `Trie` and those of `Ghosts`."""

    @property
    def tokens(self) -> bytes: ...
    @property
    def children(self) -> "dict[bytes, Self]": ...


def beyond(node: TokenNode, matched: int = 0) -> bytes:
    """How the youngest below `node` goes on after `matched` bytes of its edge: packed tokens."""
    edges, length = [node.tokens[matched:]], 0
    while node.children and length < THEIRS_MAX * TOKEN_BYTES:
        node = next(reversed(node.children.values()))
        edges.append(node.tokens)
        length += len(node.tokens)
    return b"".join(edges)[: THEIRS_MAX * TOKEN_BYTES]


@dataclass(eq=False, slots=True)
class Ghost:
    """A stretch that several prompts share, or the end of one."""

    tokens: bytes  # of the edge, packed
    end: int
    parent: "Ghost | None" = None
    children: "dict[bytes, Ghost]" = field(default_factory=dict)  # by first token, youngest last
    fates: dict[int, Fate] = field(default_factory=dict)  # by offset
    read: int = 0  # up to there; at the least where its edge begins, which says nothing

    @property
    def bytes(self) -> int:
        return NODE_BYTES + len(self.tokens) + FATE_BYTES * len(self.fates)


class Ghosts:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._roots: dict[str, Ghost] = {}  # by domain
        self._leaves: dict[Ghost, str] = {}  # its domain; seen longest ago first

    def see(self, prompt: Prompt) -> Sighting:
        """What was known of its like; from now on it is known itself."""
        if not prompt.tokens:
            return Sighting()
        match = _match(self._root(prompt.domain), prompt.packed)
        sighting = _sighting(match)
        self._walk(prompt.domain, prompt.packed, match)
        self._fit()
        return sighting

    def note_read(self, prompt: Prompt, offset: int) -> None:
        """So much of `prompt`, which was seen, has been read."""
        if root := self._roots.get(prompt.domain):
            ghost, partly, at = _match(root, prompt.packed)
            _read(partly or ghost, min(offset, at // TOKEN_BYTES))

    def note(self, domain: str, tokens: bytes, fate: Fate) -> None:
        """What became of a snapshot of `tokens`, packed, whose last is at `fate.offset`."""
        assert len(tokens) == fate.offset * TOKEN_BYTES, "a fate of other tokens"
        if not tokens:
            return
        ghost = self._walk(domain, tokens, _match(self._root(domain), tokens))
        self.bytes_held += 0 if fate.offset in ghost.fates else FATE_BYTES
        ghost.fates[fate.offset] = fate
        if fate.kind.reached:
            _read(ghost, fate.offset)
        self._fit()

    def forget(self, domain: str | None = None) -> None:
        """Of one domain, or of all."""
        for name in [domain] if domain is not None else list(self._roots):
            if root := self._roots.pop(name, None):
                for ghost in _below(root):
                    self.bytes_held -= ghost.bytes
                    self._leaves.pop(ghost, None)

    def find(self, prompt: Prompt) -> Sighting:
        """Of the prompt's own domain."""
        root = self._roots.get(prompt.domain)
        return _sighting(_match(root, prompt.packed)) if root else Sighting()

    def check(self) -> None:
        assert self.bytes_held <= self.bytes_max
        ghosts = [ghost for root in self._roots.values() for ghost in _below(root)]
        assert self.bytes_held == sum(ghost.bytes for ghost in ghosts)
        assert {ghost for ghost in ghosts if not ghost.children} == set(self._leaves)
        for ghost in ghosts:
            start = ghost.parent.end if ghost.parent else 0
            assert len(ghost.tokens) == (ghost.end - start) * TOKEN_BYTES
            assert all(start < offset <= ghost.end for offset in ghost.fates)
            assert start <= ghost.read <= ghost.end
            above = ghost.parent.read if ghost.parent else 0
            assert ghost.read == start or above == start, "read from within"
            assert ghost.parent is None or len(ghost.children) != 1, "an edge cut for nothing"
            for first, child in ghost.children.items():
                assert child.parent is ghost
                assert child.tokens.startswith(first)

    def _root(self, domain: str) -> Ghost:
        root = self._roots.get(domain)
        if root is None:
            root = self._roots[domain] = Ghost(b"", 0)
            self.bytes_held += root.bytes
        return root

    def _walk(self, domain: str, tokens: bytes, match: "_Match") -> Ghost:
        """The ghost on whose edge `tokens` end, new as far as need be, and now the youngest."""
        ghost, partly, at = match
        rest = tokens[at:]
        if partly and not rest:
            ghost = partly
        elif partly:
            ghost = self._grow(self._split(partly, at // TOKEN_BYTES), rest)
        elif rest and ghost in self._leaves and ghost.parent:
            ghost.tokens += rest
            ghost.end += len(rest) // TOKEN_BYTES
            self.bytes_held += len(rest)
        elif rest:
            ghost = self._grow(ghost, rest)
        self._touch(ghost, domain)
        return ghost

    def _touch(self, ghost: Ghost, domain: str) -> None:
        leaf = ghost
        while leaf.children:
            leaf = next(reversed(leaf.children.values()))
        self._leaves.pop(leaf, None)
        self._leaves[leaf] = domain
        while parent := ghost.parent:
            first = ghost.tokens[:TOKEN_BYTES]
            parent.children[first] = parent.children.pop(first)
            ghost = parent

    def _grow(self, parent: Ghost, tokens: bytes) -> Ghost:
        ghost = Ghost(tokens, parent.end + len(tokens) // TOKEN_BYTES, parent, read=parent.end)
        parent.children[tokens[:TOKEN_BYTES]] = ghost
        self.bytes_held += ghost.bytes
        return ghost

    def _split(self, ghost: Ghost, offset: int) -> Ghost:
        """Cut its edge in two; the upper part, a new one that ends at `offset`."""
        assert ghost.parent
        cut = (offset - ghost.parent.end) * TOKEN_BYTES
        upper = Ghost(ghost.tokens[:cut], offset, ghost.parent, read=min(ghost.read, offset))
        upper.fates = {at: fate for at, fate in ghost.fates.items() if at <= offset}
        ghost.fates = {at: fate for at, fate in ghost.fates.items() if at > offset}
        ghost.parent.children[upper.tokens[:TOKEN_BYTES]] = upper
        ghost.tokens, ghost.parent = ghost.tokens[cut:], upper
        ghost.read = max(ghost.read, offset)
        upper.children[ghost.tokens[:TOKEN_BYTES]] = ghost
        self.bytes_held += NODE_BYTES
        return upper

    def _fit(self) -> None:
        while self.bytes_held > self.bytes_max:
            self._drop(next(iter(self._leaves)))

    def _drop(self, leaf: Ghost) -> None:
        domain = self._leaves.pop(leaf)
        self.bytes_held -= leaf.bytes
        parent = leaf.parent
        assert parent, "a root is no leaf"
        del parent.children[leaf.tokens[:TOKEN_BYTES]]
        if parent.parent:  # what is left below it: one child, or else it would not be
            if len(parent.children) == 1:
                self._join(parent, next(iter(parent.children.values())))
        elif not parent.children:
            self.bytes_held -= parent.bytes
            del self._roots[domain]

    def _join(self, upper: Ghost, lower: Ghost) -> None:
        assert upper.parent
        lower.tokens = upper.tokens + lower.tokens
        lower.fates = upper.fates | lower.fates
        lower.read = lower.read if upper.read == upper.end else upper.read
        lower.parent = upper.parent
        siblings = upper.parent.children
        first = upper.tokens[:TOKEN_BYTES]
        del siblings[first]  # its age among them is lost: it counts as young
        siblings[first] = lower
        self.bytes_held -= NODE_BYTES


# (the deepest wholly on the way, the one below that is in part, bytes matched)
_Match = tuple[Ghost, Ghost | None, int]


def _match(root: Ghost, tokens: bytes) -> _Match:
    ghost, at = root, 0
    while child := ghost.children.get(tokens[at : at + TOKEN_BYTES]):
        if not tokens.startswith(child.tokens, at):
            rest = tokens[at : at + len(child.tokens)]
            alike = common_length(child.tokens, rest) // TOKEN_BYTES * TOKEN_BYTES
            return ghost, child, at + alike
        ghost, at = child, at + len(child.tokens)
    return ghost, None, at


def _read(ghost: Ghost, offset: int) -> None:
    """Up to there, which is on the edge of `ghost` or above."""
    node: Ghost | None = ghost
    while node:
        node.read = max(node.read, min(node.end, offset))
        node = node.parent


def _sighting(match: _Match) -> Sighting:
    ghost, partly, at = match
    node: Ghost | None = partly or ghost
    seen, last, read = at // TOKEN_BYTES, partly or ghost, 0
    fates: dict[int, Fate] = {}
    while node:
        fates |= node.fates
        if node.parent and node.read > node.parent.end:
            read = max(read, min(node.read, seen))
        node = node.parent
    theirs = beyond(last, at - ghost.end * TOKEN_BYTES if partly else len(ghost.tokens))
    return Sighting(seen, read, theirs, tuple(fates[o] for o in sorted(fates) if o <= seen))


def _below(ghost: Ghost) -> Iterator[Ghost]:
    stack = [ghost]
    while stack:
        one = stack.pop()
        yield one
        stack.extend(one.children.values())

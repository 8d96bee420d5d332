"""What is kept, by the tokens that led to it: a trie that owns each row once.

Invariants, which `check` asserts:
  * A node owns the rows of its edge, [start, end), and `end` of its parent is its `start`.
  * Siblings differ in their first token, so a prompt has one way down.
  * Each domain has a root of its own: no way leads from one to another.
  * `bytes` is the sum over rows, and over the states and logits of slots.
  * `newest` of a node, the root aside, is what can be counted below it.

A node with a slot is a kept snapshot; one without is where the ways to others part.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from flm.core.alike import common_length
from flm.core.prompt import BoundaryKind
from flm.devices.device import Array
from flm.prefix.outgrown import NEVER, Newest, newest_below, newest_to, rise, sink
from flm.prefix.ranks import RANK, SHARED
from flm.prefix.stake import Stake, forget, forget_branch

TOKEN_BYTES = 4  # token ids are int32, packed


@dataclass(eq=False, slots=True)
class Slot:
    """A kept snapshot, numbered by age: what it has beyond the rows that lead to it."""

    number: int
    kind: BoundaryKind
    used_at: int
    state: Mapping[str, Array]  # {}: the model has none
    logits: Array | None = None  # [vocabulary], of the last token
    used_s: float = 0.0  # on the cache's clock
    made_s: float = 0.0
    hits: int = 0
    agent: bool = False  # a program's conversation
    ahead: int = 0  # tokens read before anybody asked; 0 once somebody did
    on_disk: bool = False
    writing: Future[int] | None = None  # its arrays are being written
    refusals: int = 0  # times in a row that the disk did not take it
    offer_s: float = 0.0  # on the cache's clock: it may be offered again
    doomed: bool = False  # nobody starts from it, and it goes with the last lease on it
    bytes: int = field(init=False)
    stake: Stake | None = None  # while nothing is held; None: not counted yet

    def __post_init__(self) -> None:
        self.bytes = sum(array.nbytes for array in self.arrays())

    def arrays(self) -> Iterator[Array]:
        yield from self.state.values()
        if self.logits is not None:
            yield self.logits


@dataclass(eq=False, slots=True)
class Node:
    tokens: bytes  # of the edge, packed
    start: int
    end: int
    rows: dict[str, Array]  # name -> [heads, end - start, width]
    parent: "Node | None" = None
    slot: Slot | None = None
    children: dict[bytes, "Node"] = field(default_factory=dict)  # by first token
    newest: Newest = NEVER  # of what is kept below

    @property
    def rows_bytes(self) -> int:
        return sum(array.nbytes for array in self.rows.values())

    @property
    def split_bytes(self) -> int:
        """What cutting the edge holds twice, for a moment: its largest block of memory."""
        blocks: Counter[int] = Counter()
        for array in self.rows.values():
            blocks[id(array if array.base is None else array.base)] += array.nbytes
        return max(blocks.values(), default=0)

    @property
    def serves(self) -> bool:
        """Whether a prompt may start from the state at its end."""
        return self.slot is not None and not self.slot.doomed

    def path(self) -> Iterator["Node"]:
        """This node and those above it, without the root."""
        node = self
        while node.parent:
            yield node
            node = node.parent

    def below(self) -> Iterator["Node"]:
        """This node and all below it, youngest branch first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def slot_through(self) -> Slot | None:
        """The snapshot that has these rows: the node's own, or one below."""
        found = (node.slot for node in self.below() if node.slot and not node.slot.doomed)
        return next(found, None)


class Match(NamedTuple):
    """How far the trie goes along some tokens."""

    node: Node  # the deepest that lies on them wholly
    child: Node | None  # the one that lies on them in part
    length: int  # tokens matched, those of `child` included


class Trie:
    def __init__(self) -> None:
        self.roots: dict[str, Node] = {}  # by domain; one that leads somewhere, or did
        self.bytes = 0

    def root(self, domain: str) -> Node:
        root = self.roots.get(domain)
        if root is None:
            root = self.roots[domain] = Node(b"", 0, 0, {})
        return root

    def nodes(self) -> Iterator[Node]:
        """All but the roots."""
        for root in self.roots.values():
            for child in root.children.values():
                yield from child.below()

    def find(self, domain: str, tokens: bytes) -> Match:
        node, at = self.root(domain), 0
        while child := node.children.get(tokens[at : at + TOKEN_BYTES]):
            if not tokens.startswith(child.tokens, at):
                shared = common_length(child.tokens, tokens[at:]) // TOKEN_BYTES
                return Match(node, child, node.end + shared)
            node, at = child, at + len(child.tokens)
        return Match(node, None, node.end)

    def grow(self, parent: Node, tokens: bytes, rows: Mapping[str, Array]) -> Node:
        """A new leaf, `tokens` below `parent`; the rows are the trie's from now on."""
        node = Node(tokens, parent.end, parent.end + len(tokens) // TOKEN_BYTES, dict(rows), parent)
        assert tokens[:TOKEN_BYTES] not in parent.children, f"second way down from {parent.end}"
        parent.children[tokens[:TOKEN_BYTES]] = node
        self.bytes += node.rows_bytes
        forget_branch(parent)
        return node

    def split(self, node: Node, offset: int) -> Node:
        """Cut the edge of `node` in two; the new node, which ends at `offset`.

        Rows are copied, for a view would keep the whole edge alive after its other half is gone;
        and tensor by tensor, so that no more than `split_bytes` is ever held twice.
        """
        assert node.parent
        assert node.start < offset < node.end, f"no edge over {offset}"
        count = offset - node.start
        before, after = node.tokens[: count * TOKEN_BYTES], node.tokens[count * TOKEN_BYTES :]
        middle = Node(before, node.start, offset, {}, node.parent, newest=newest_to(node))
        for name, array in node.rows.items():
            middle.rows[name] = array[:, :count].copy()
            node.rows[name] = array[:, count:].copy()
        node.parent.children[before[:TOKEN_BYTES]] = middle
        middle.children[after[:TOKEN_BYTES]] = node
        node.parent, node.tokens, node.start = middle, after, offset
        return middle

    def put(self, node: Node, slot: Slot) -> None:
        """Make what is kept up to the end of `node` a snapshot."""
        assert node.slot is None, f"two slots at {node.end}"
        node.slot = slot
        self.bytes += slot.bytes
        rise(node)
        forget(node)

    def use(self, node: Node, kind: BoundaryKind, used_at: int) -> None:
        """Its snapshot is wanted again, perhaps as one of another kind: the one that serves longest
        stays.
        """
        slot = node.slot
        assert slot is not None, f"no slot at {node.end}"
        slot.kind = max(slot.kind, kind, key=lambda kind: RANK[kind])
        if slot.kind in SHARED:
            sink(node.parent, slot.used_at)
        slot.used_at = max(slot.used_at, used_at)
        rise(node)

    def put_logits(self, node: Node, logits: Array) -> None:
        """What its snapshot lacked."""
        slot = node.slot
        assert slot is not None, f"no slot at {node.end}"
        assert slot.logits is None, f"logits twice at {node.end}"
        slot.logits = logits
        slot.bytes += logits.nbytes
        self.bytes += logits.nbytes
        forget(node)

    def take(self, node: Node) -> Slot:
        """Make it one no longer."""
        slot = node.slot
        assert slot is not None, f"no slot at {node.end}"
        node.slot = None
        self.bytes -= slot.bytes
        sink(node.parent, slot.used_at)
        forget(node)
        return slot

    def remove(self, leaf: Node) -> None:
        assert leaf.parent
        assert not leaf.children, f"something below {leaf.end}"
        assert not leaf.slot, f"kept at {leaf.end}"
        del leaf.parent.children[leaf.tokens[:TOKEN_BYTES]]
        self.bytes -= leaf.rows_bytes
        forget_branch(leaf.parent)
        leaf.rows.clear()  # nor does who still looks at the node keep them alive

    def uproot(self, root: Node) -> None:
        """Forget a domain that has nothing left."""
        assert not root.children
        self.roots = {domain: kept for domain, kept in self.roots.items() if kept is not root}

    def check(self) -> None:
        total = 0
        for node in [*self.roots.values(), *self.nodes()]:
            for first, child in node.children.items():
                assert child.parent is node
                assert child.start == node.end < child.end, f"gap at {node.end}"
                assert child.tokens.startswith(first)
                assert len(first) == TOKEN_BYTES
                assert len(child.tokens) == (child.end - child.start) * TOKEN_BYTES
            for name, array in node.rows.items():
                assert array.shape[1] == node.end - node.start, f"{name} at {node.end}"
            if node.parent:
                assert node.newest == newest_below(node), f"used since below {node.end}"
            total += node.rows_bytes
            total += sum(array.nbytes for array in node.slot.arrays()) if node.slot else 0
        assert self.bytes == total, f"{self.bytes} bytes counted, {total} held"

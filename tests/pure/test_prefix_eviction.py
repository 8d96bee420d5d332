"""The order of giving up, decided over plain records and small tries."""

from itertools import permutations

from flm.core.prompt import BoundaryKind
from flm.prefix.eviction import Candidate, outgrown, victim
from flm.prefix.trie import Node, Slot, Trie

END, OPENER, TURN, FORK, HEAD = (
    BoundaryKind.END,
    BoundaryKind.OPENER,
    BoundaryKind.TURN,
    BoundaryKind.FORK,
    BoundaryKind.HEAD,
)


def test_outgrown_goes_before_ends_before_turns_before_heads_and_the_older_first() -> None:
    order = [
        Candidate(7, TURN, used_at=20, outgrown=True),
        Candidate(8, END, used_at=21, outgrown=True),
        Candidate(6, END, used_at=3, outgrown=False),
        Candidate(5, END, used_at=9, outgrown=False),
        Candidate(4, OPENER, used_at=2, outgrown=False),
        Candidate(3, TURN, used_at=1, outgrown=False),
        Candidate(2, FORK, used_at=0, outgrown=False),
        Candidate(1, HEAD, used_at=0, outgrown=False),
    ]
    for shuffled in permutations(order, 4):
        assert victim(shuffled) == min(shuffled, key=order.index)
    assert victim(order) == order[0]
    assert victim([]) is None


class Conversation:
    """Nodes by hand: each a token below the one before, unless told otherwise."""

    def __init__(self) -> None:
        self.trie = Trie()
        self.nodes: list[Node] = []

    def keep(self, kind: BoundaryKind, *, used_at: int, below: Node | None = None) -> Node:
        parent = below or (self.nodes[-1] if self.nodes else self.trie.root(""))
        token = len(self.nodes).to_bytes(4)
        node = self.trie.grow(parent, token, {})
        self.trie.put(node, Slot(len(self.nodes) + 1, kind, used_at, {}))
        self.nodes.append(node)
        return node

    def outgrown(self, newcomer: BoundaryKind = HEAD, below: Node | None = None) -> set[Node]:
        return outgrown(self.nodes, newcomer, below or self.trie.root(""))


def test_an_end_is_outgrown_by_a_newer_end_further_down_its_way() -> None:
    chat = Conversation()
    chat.keep(HEAD, used_at=1)
    first = chat.keep(END, used_at=1)
    assert chat.outgrown() == set()
    second = chat.keep(END, used_at=2)
    assert chat.outgrown() == {first}
    assert chat.outgrown(END, below=second) == {first, second}, "by one that is about to come"
    assert chat.outgrown(HEAD, below=second) == {first}, "but a head is nobody's newer reply"


def test_an_end_is_not_outgrown_by_an_older_one_once_the_user_went_back_to_it() -> None:
    chat = Conversation()
    first = chat.keep(END, used_at=3)
    chat.keep(END, used_at=2)
    assert first not in chat.outgrown()


def test_a_turn_is_outgrown_by_turns_only_and_an_opener_by_either() -> None:
    chat = Conversation()
    turn = chat.keep(TURN, used_at=1)
    opener = chat.keep(OPENER, used_at=2)
    chat.keep(END, used_at=2)
    assert chat.outgrown() == set(), "an end is no reason to give up what outlives it"
    later = chat.keep(OPENER, used_at=3, below=opener)
    assert chat.outgrown() == {opener}
    chat.keep(TURN, used_at=4, below=later)
    assert chat.outgrown() == {turn, opener, later}


def test_branches_and_what_one_request_kept_do_not_outgrow_each_other() -> None:
    chat = Conversation()
    trunk = chat.keep(HEAD, used_at=1)
    chat.keep(END, used_at=2, below=trunk)
    chat.keep(END, used_at=3, below=trunk)
    opener = chat.keep(OPENER, used_at=4, below=trunk)
    chat.keep(TURN, used_at=4, below=opener)
    assert chat.outgrown() == set()

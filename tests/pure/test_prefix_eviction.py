"""The order of giving up, decided over plain records and small tries."""

from dataclasses import dataclass
from itertools import permutations
from random import Random

import numpy as np
import pytest

from bench.policies import Gdsf, Marconi, lru
from flm.core.prompt import BoundaryKind
from flm.prefix.eviction import (
    PAUSE_S,
    POLICIES,
    Candidate,
    Policy,
    density,
    flm,
    hand_up,
    pinning,
)
from flm.prefix.outgrown import outgrown
from flm.prefix.stake import stake
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
        assert flm(shuffled) == min(shuffled, key=order.index)
    assert flm(order) == order[0]
    assert flm([]) is None


def test_flm_gives_up_an_agents_before_a_persons_where_they_serve_as_long() -> None:
    order = [
        Candidate(1, TURN, used_at=9, outgrown=True),
        Candidate(2, END, used_at=8, outgrown=False, agent=True),
        Candidate(3, END, used_at=1, outgrown=False),
        Candidate(4, TURN, used_at=7, outgrown=False, agent=True),
        Candidate(5, TURN, used_at=2, outgrown=False),
        Candidate(6, HEAD, used_at=3, outgrown=False),
        Candidate(7, HEAD, used_at=4, outgrown=False, agent=True),
    ]
    for shuffled in permutations(order, 3):
        assert flm(shuffled) == min(shuffled, key=order.index)


def some_candidates(random: Random) -> list[Candidate]:
    kinds = list(BoundaryKind)
    return [
        Candidate(
            number,
            random.choice(kinds),
            used_at=random.randrange(20),
            outgrown=random.random() < 0.3,
            agent=random.random() < 0.5,
            idle_s=random.choice((0.0, 3.0, 900.0)),
            tokens_saved=random.choice((0, 70, 9_000)),
            bytes_freed=random.choice((0, 30, 4_000)),
            awaited=random.random() < 0.3,
        )
        for number in random.sample(range(50), random.randint(1, 9))
    ]


RIVALS: dict[str, Policy] = {
    **POLICIES,
    "lru": lru,
    "gdsf": Gdsf(),
    "marconi": Marconi(0.3),
}


@pytest.mark.parametrize("policy", RIVALS.values(), ids=RIVALS)
def test_a_policy_names_one_of_the_candidates_in_whatever_order_they_come(policy: Policy) -> None:
    random = Random(7)
    for _ in range(200):
        candidates = some_candidates(random)
        going = policy(iter(candidates))
        assert going in candidates
        if not isinstance(policy, Gdsf):  # which remembers
            random.shuffle(candidates)
            assert policy(candidates) == going
    assert policy([]) is None


def turn(number: int, **more: float) -> Candidate:
    return Candidate(number, TURN, used_at=number, outgrown=False)._replace(**more)


def test_density_begins_with_the_outgrown_and_the_ends_the_least_recently_used_first() -> None:
    dear = {"tokens_saved": 9_000, "bytes_freed": 1}
    order = [
        turn(1, outgrown=True, **dear),
        Candidate(2, END, used_at=2, outgrown=False)._replace(**dear),
        turn(3, outgrown=True),
        turn(5, tokens_saved=10, bytes_freed=1000),
        turn(4, tokens_saved=20, bytes_freed=1000),
    ]
    for shuffled in permutations(order, 3):
        assert density(shuffled) == min(shuffled, key=order.index)


def test_density_goes_by_tokens_saved_for_a_byte_and_a_second() -> None:
    usual = turn(1, tokens_saved=1000, bytes_freed=1000, idle_s=10)
    assert density([usual, turn(0, tokens_saved=999, bytes_freed=1000, idle_s=10)]) != usual
    assert density([usual, turn(0, tokens_saved=1001, bytes_freed=1000, idle_s=10)]) == usual
    assert density([usual, turn(0, tokens_saved=1000, bytes_freed=999, idle_s=10)]) == usual
    assert density([usual, turn(0, tokens_saved=1000, bytes_freed=1000, idle_s=9)]) == usual
    twice = turn(0, tokens_saved=2001, bytes_freed=1000, idle_s=10 + 10 + PAUSE_S)
    assert density([usual, twice]) == usual, "twice as long away, twice as much saved"


def test_density_counts_twice_what_conversations_share_and_no_more() -> None:
    usual = turn(1, tokens_saved=1000, bytes_freed=1000, idle_s=10)
    head = Candidate(0, HEAD, 0, False, bytes_freed=1000, idle_s=10)
    assert density([usual, head._replace(tokens_saved=501)]) == usual
    assert density([usual, head._replace(tokens_saved=499)]) != usual


def test_gdsf_ages_so_that_what_saved_much_once_goes_at_last() -> None:
    policy = Gdsf()
    dear = turn(1, tokens_saved=500, bytes_freed=100)
    for number in range(2, 100):
        if policy([dear, turn(number, tokens_saved=100, bytes_freed=100)]) == dear:
            break
    assert number == 6, "five times as dear: four others came and went, and the next ties"


def test_pinning_is_density_among_those_that_nothing_is_awaited_of_while_there_are_any() -> None:
    random = Random(8)
    for _ in range(200):
        given = some_candidates(random)
        free = [each for each in given if not each.awaited]
        assert pinning(given) == density(free or given)


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

    def outgrown(self) -> set[Node]:
        return {node for node in self.nodes if outgrown(node)}


def test_an_end_is_outgrown_by_a_newer_end_further_down_its_way() -> None:
    chat = Conversation()
    chat.keep(HEAD, used_at=1)
    first = chat.keep(END, used_at=1)
    assert chat.outgrown() == set()
    chat.keep(END, used_at=2)
    assert chat.outgrown() == {first}
    chat.keep(HEAD, used_at=3)
    assert chat.outgrown() == {first}, "a head is nobody's newer reply"


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


@dataclass
class Kept:
    """A trie with rows of a byte and states of 100."""

    state_bytes: int

    def __post_init__(self) -> None:
        self.trie = Trie()

    def grow(self, parent: Node, first: int, count: int, *, slot: bool) -> Node:
        tokens = np.arange(first, first + count, dtype=np.int32).tobytes()
        node = self.trie.grow(parent, tokens, {"rows": np.zeros((1, count, 1), np.uint8)})
        if slot:
            state = {"state": np.zeros(self.state_bytes, np.uint8)} if self.state_bytes else {}
            self.trie.put(node, Slot(first, TURN, 1, state))
        return node


def test_at_stake_are_the_tokens_from_the_snapshot_above_and_the_bytes_really_freed() -> None:
    kept = Kept(state_bytes=100)
    head = kept.grow(kept.trie.root(""), 0, 50, slot=True)
    parting = kept.grow(head, 1000, 7, slot=False)
    way = kept.grow(parting, 2000, 5, slot=False)
    leaf = kept.grow(way, 3000, 3, slot=True)
    other = kept.grow(parting, 4000, 2, slot=True)
    assert stake(head, set(), 1) == (50, 100), "what goes on from there keeps its rows"
    assert stake(leaf, set(), 1) == (15, 108), "to where the ways part"
    assert stake(leaf, {way, parting, head}, 1) == (15, 103), "a lease keeps those it rests on"
    assert stake(leaf, {leaf, way, parting, head}, 1) == (15, 100)
    kept.trie.take(other)
    kept.trie.remove(other)
    assert stake(leaf, set(), 1) == (15, 115)


def test_without_state_rows_that_stay_need_not_be_read_again() -> None:
    kept = Kept(state_bytes=0)
    head = kept.grow(kept.trie.root(""), 0, 50, slot=True)
    leaf = kept.grow(head, 1000, 7, slot=True)
    assert stake(head, set(), 1) == (0, 0)
    assert stake(leaf, set(), 1) == (7, 7)
    assert stake(leaf, {leaf, head}, 1) == (0, 0)


def test_who_is_given_up_hands_the_time_of_its_use_to_the_nearest_kept_above() -> None:
    kept = Kept(state_bytes=100)
    head = kept.grow(kept.trie.root(""), 0, 50, slot=True)
    parting = kept.grow(head, 1000, 7, slot=False)
    leaf, other = (kept.grow(parting, 1000 * at, 5, slot=True) for at in (2, 3))
    assert head.slot
    assert leaf.slot
    assert other.slot
    leaf.slot.used_s, other.slot.used_s = 30.0, 10.0
    for going, used_s in ((head, 0.0), (other, 10.0), (leaf, 30.0), (other, 30.0)):
        hand_up(going)
        assert head.slot.used_s == used_s

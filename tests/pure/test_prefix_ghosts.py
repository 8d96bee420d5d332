"""Ghosts know what was seen and what became of it, of one domain only and in bounded memory."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flm.core.alike import common_length
from flm.core.finding import Fate, FateKind
from flm.core.prompt import BoundaryKind, Prompt
from flm.prefix.ghosts import FATE_BYTES, NODE_BYTES, Ghosts, Sighting, beyond, found
from flm.prefix.trie import TOKEN_BYTES, Node

EVICTED = FateKind.EVICTED


def prompt(*tokens: int, domain: str = "") -> Prompt:
    return Prompt(tokens, domain=domain)


def note(ghosts: Ghosts, kind: FateKind, *tokens: int, domain: str = "") -> Fate:
    fate = Fate(kind, len(tokens), BoundaryKind.TURN)
    ghosts.note(domain, prompt(*tokens).packed, fate)
    return fate


def unpacked(tokens: bytes) -> list[int]:
    return list(memoryview(tokens).cast("i"))


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=8)
moves = st.tuples(st.sampled_from(["see", "read", "note", "unreached", "forget", "find"]), tokens)


def most_alike(here: Prompt, others: list[tuple[str, tuple[int, ...]]]) -> int:
    mine = (other for domain, other in others if domain == here.domain)
    alike = (common_length(here.packed, prompt(*other).packed) for other in mine)
    return max(alike, default=0) // TOKEN_BYTES


@pytest.mark.parametrize("bytes_max", [10**6, 4 * NODE_BYTES])
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(data=st.lists(st.tuples(st.sampled_from("ab"), moves), max_size=40))
def test_they_find_what_a_list_of_all_prompts_would(bytes_max: int, data: Any) -> None:
    ghosts = Ghosts(bytes_max)
    sent: list[tuple[str, tuple[int, ...]]] = []
    read: list[tuple[str, tuple[int, ...]]] = []
    fates: dict[tuple[str, tuple[int, ...]], Fate] = {}
    for domain, (move, ids) in data:
        here = prompt(*ids, domain=domain)
        if move == "see":
            known = ghosts.find(here)
            assert ghosts.see(here) == known
        elif move == "read":
            offset = (len(ids) + 1) // 2
            ghosts.note_read(here, offset)
            read.append((domain, here.tokens[: min(offset, most_alike(here, sent))]))
        elif move in ("note", "unreached"):
            kind = EVICTED if move == "note" else FateKind.CANCELLED
            fates[domain, here.tokens] = note(ghosts, kind, *ids, domain=domain)
            read += [(domain, here.tokens)] if kind.reached else []
        elif move == "forget":
            ghosts.forget(domain)
            sent = [one for one in sent if one[0] != domain]
            read = [one for one in read if one[0] != domain]
            fates = {key: fate for key, fate in fates.items() if key[0] != domain}
        else:
            sighting = ghosts.find(here)
            on_way = [
                fate
                for (of, other), fate in fates.items()
                if of == domain and here.tokens[: len(other)] == other
            ]
            theirs = (*ids[: sighting.seen], *unpacked(sighting.theirs))
            assert any((domain, theirs) == one for one in sent) or not theirs
            if bytes_max == 10**6:
                assert sighting.seen == most_alike(here, sent)
                assert sighting.read == most_alike(here, read)
                assert sighting.fates == tuple(sorted(on_way, key=lambda fate: fate.offset))
            assert set(sighting.fates) <= set(on_way)
            assert sighting.read <= min(sighting.seen, most_alike(here, read))
        if move in ("see", "note", "unreached"):
            sent.append((domain, here.tokens))
        ghosts.check()


def test_one_domain_learns_nothing_of_another() -> None:
    ghosts = Ghosts(10**6)
    ghosts.see(prompt(1, 2, 3, domain="alice"))
    note(ghosts, EVICTED, 1, 2, domain="alice")
    assert ghosts.find(prompt(1, 2, 3, domain="bob")) == Sighting()
    ghosts.see(prompt(1, 7, domain="bob"))
    ghosts.forget("alice")
    assert ghosts.find(prompt(1, 2, 3, domain="alice")) == Sighting()
    assert ghosts.find(prompt(1, 2, domain="bob")) == Sighting(1, 0, prompt(7).packed)


def test_the_likest_is_the_youngest_of_those_that_share_most() -> None:
    ghosts = Ghosts(10**6)
    for last in (3, 4, 5, 3):
        ghosts.see(prompt(1, 2, last))
        assert unpacked(ghosts.find(prompt(1, 2, 9)).theirs) == [last]
    ghosts.see(prompt(1, 2, 4, 5))
    assert unpacked(ghosts.find(prompt(1, 2, 9)).theirs) == [4, 5]


def test_what_was_seen_longest_ago_goes_first() -> None:
    ghosts = Ghosts(NODE_BYTES + 3 * (NODE_BYTES + 4 * TOKEN_BYTES))
    for first in (1, 2, 3, 1, 4):
        ghosts.see(prompt(first, 0, 0, 0))
    seen = [ghosts.find(prompt(first, 0, 0, 0)).seen for first in (1, 2, 3, 4)]
    assert seen == [4, 0, 4, 4]


def test_a_prompt_larger_than_all_room_is_not_remembered() -> None:
    ghosts = Ghosts(4 * NODE_BYTES)
    ghosts.see(prompt(*range(NODE_BYTES)))
    assert ghosts.bytes_held == 0
    Ghosts(0).see(prompt(1))


def test_what_was_seen_is_read_only_as_far_as_it_was() -> None:
    ghosts = Ghosts(10**6)
    ghosts.see(prompt(1, 2, 3, 4, 5, 6))
    assert ghosts.find(prompt(1, 2, 3)).read == 0
    ghosts.note_read(prompt(1, 2, 3, 4, 5, 6), 4)
    ghosts.see(prompt(1, 2, 3, 4, 5, 7))
    ghosts.see(prompt(1, 2, 8))
    for ids, read in (((1, 2, 3, 4, 5, 6), 4), ((1, 2, 3), 3), ((1, 2, 8), 2), ((9,), 0)):
        assert ghosts.find(prompt(*ids)).read == read
    ghosts.note_read(prompt(1, 2, 3), 1)
    assert ghosts.find(prompt(1, 2, 3)).read == 3, "what was read stays so"


def test_fates_take_room_too() -> None:
    ghosts = Ghosts(2 * NODE_BYTES + 100 * TOKEN_BYTES + 3 * FATE_BYTES)
    way = tuple(range(100))
    ghosts.see(prompt(*way))
    for offset in (10, 20, 30, 30, 30):
        note(ghosts, EVICTED, *way[:offset])
        assert ghosts.find(prompt(*way)).seen == 100
    note(ghosts, EVICTED, *way[:40])
    assert ghosts.bytes_held == 0


def test_the_last_word_about_a_snapshot_counts() -> None:
    ghosts = Ghosts(10**6)
    note(ghosts, FateKind.NO_ROOM, 1, 2)
    last = note(ghosts, EVICTED, 1, 2)
    assert ghosts.find(prompt(1, 2, 3)).fates == (last,)


def test_a_finding_has_the_fates_between_what_is_reused_and_what_was_seen() -> None:
    ghosts = Ghosts(10**6)
    ghosts.see(prompt(1, 2, 3, 4, 5))
    fates = [note(ghosts, EVICTED, *range(1, end)) for end in (2, 4, 6)]
    here = prompt(1, 2, 3, 4, 9)
    finding = found(here, offset=1, tier="memory", gain_min=1, sightings=[ghosts.find(here)])
    assert (finding.seen, unpacked(finding.theirs)) == (4, [5])
    assert finding.fates == (fates[1],)


def test_what_is_kept_was_seen_whether_a_ghost_is_left_or_not() -> None:
    here = prompt(1, 2, 3)
    finding = found(here, offset=2, tier="disk", gain_min=1, sightings=[Sighting()])
    assert (finding.offset, finding.seen, finding.theirs) == (2, 2, b"")
    assert found(here, offset=0, tier=None, gain_min=1, sightings=[]).seen == 0


def test_the_kept_trie_tells_how_others_go_on_as_well() -> None:
    leaf = Node(prompt(1, 2, 3).packed, 0, 3, {})
    below = Node(prompt(4, 5).packed, 3, 5, {}, leaf)
    leaf.children[prompt(4).packed] = below
    assert unpacked(beyond(leaf, 2 * TOKEN_BYTES)) == [3, 4, 5]

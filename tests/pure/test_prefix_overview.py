"""What people are told of the tree is what the tree does: bytes, places, tiers."""

from pathlib import Path

import numpy as np
import pytest

from flm.prefix.cache import PrefixCache
from flm.prefix.disk.tier import DiskTier
from flm.prefix.overview import (
    Stretch,
    beginning,
    kept_tiers,
    overview,
    with_disk,
)
from flm.prefix.stake import stake
from flm.prefix.trie import TOKEN_BYTES
from tests.pure.disk import HYBRID, Disk
from tests.pure.toy import ROW_BYTES, STATE_BYTES, both, prompt, serve, text, toy_cache

SYSTEM = text(1, 40)
FIRST, SECOND = [*SYSTEM, *text(2, 20)], [*SYSTEM, *text(3, 30)]


def filled(*, hybrid: bool) -> PrefixCache:
    """Two conversations with one head, one of them gone on with, and another prompt."""
    cache = toy_cache(hybrid=hybrid)
    serve(cache, FIRST, head=40, end=60)
    serve(cache, SECOND, head=40, end=70)
    serve(cache, [*SECOND, *text(4, 10)], head=40, turn=75, end=80)
    serve(cache, text(5, 15))
    return cache


def way(stretches: tuple[Stretch, ...], stretch: Stretch) -> bytes:
    above = b"" if stretch.above is None else way(stretches, stretches[stretch.above])
    return above + stretch.tokens


@both
def test_own_bytes_are_what_giving_up_the_snapshot_frees(hybrid: bool) -> None:
    cache = filled(hybrid=hybrid)
    view = overview(cache, "")
    shown = {each.slot: each for each in view.stretches if each.slot}
    assert set(shown) == set(cache.slots)
    for number, node in cache.slots.items():
        assert shown[number].bytes_own == stake(node, (), ROW_BYTES)[1]
        assert node.slot
        whole = shown[number].bytes_own + shown[number].bytes_shared
        assert whole == node.end * ROW_BYTES + node.slot.bytes


@both
def test_each_row_is_somewhere_and_follows_what_leads_to_it(hybrid: bool) -> None:
    cache = filled(hybrid=hybrid)
    view = overview(cache, "")
    assert view.totals.bytes_own == view.totals.bytes_kept == cache.bytes_kept
    assert view.totals.slots_own == cache.slot_count
    for place, each in enumerate(view.stretches):
        before = each.above
        assert (0 if before is None else view.stretches[before].end) == each.start < each.end
        assert before is None or before < place
        assert len(way(view.stretches, each)) == each.end * TOKEN_BYTES
    ways = {way(view.stretches, each) for each in view.stretches}
    assert {prompt(FIRST).packed, prompt(SECOND).packed} <= ways
    assert beginning(view.stretches[-1], 3) == tuple(
        np.frombuffer(view.stretches[-1].tokens, np.int32)[:3]
    )


def test_ages_hits_and_leases_are_those_of_the_snapshot() -> None:
    cache = filled(hybrid=True)
    lease = cache.lease(prompt([*FIRST, 1]))
    view = overview(cache, "")
    (end,) = (each for each in view.stretches if each.end == 60)
    assert (end.hits, end.leases) == (1, 1)
    assert end.age_s is not None
    assert end.idle_s is not None
    assert end.age_s > end.idle_s > 0
    (head,) = (each for each in view.stretches if each.end == 40)
    assert head.leases == 1
    assert all(not each.leases for each in view.stretches if each.end not in (40, 60))
    lease.close()


def test_another_domain_is_not_seen() -> None:
    cache = filled(hybrid=True)
    view = overview(cache, "other")
    assert view.stretches == ()
    assert (view.totals.bytes_own, view.totals.slots_own) == (0, 0)
    assert "other" not in cache.trie.roots


def test_asking_changes_nothing() -> None:
    cache = filled(hybrid=True)
    before = (dict(cache.tally.counts), cache.ghosts.bytes_held, list(cache.slots))
    used = {number: (node.slot and node.slot.used_at) for number, node in cache.slots.items()}
    overview(cache, "")
    kept_tiers(cache, prompt(FIRST, head=40, end=60))
    kept_tiers(cache, prompt(text(9, 9), end=9))
    cache.check()
    assert before == (dict(cache.tally.counts), cache.ghosts.bytes_held, list(cache.slots))
    assert used == {n: (node.slot and node.slot.used_at) for n, node in cache.slots.items()}


def test_a_large_tree_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 50
    monkeypatch.setattr("flm.prefix.overview.STRETCHES_MAX", most)
    cache = toy_cache(hybrid=True)
    for first in range(most + 1):
        serve(cache, [first, 7, 8])
    view = overview(cache, "")
    assert view.truncated
    assert len(view.stretches) == most
    assert view.totals.slots_own == most + 1
    assert beginning(view.stretches[0], 1) == (most,)  # the youngest is there


@both
def test_a_boundary_is_kept_where_a_prompt_would_start_from(hybrid: bool) -> None:
    cache = filled(hybrid=hybrid)
    asked = prompt([*FIRST[:50], *text(6, 20)], head=40, turn=45, opener=55, end=70)
    head, turn, opener, end = kept_tiers(cache, asked)
    assert head == "host"
    assert turn == (None if hybrid else "host")
    assert opener is end is None


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path, HYBRID)


def test_what_only_the_disk_has_is_shown_beside_what_both_have(disk: Disk) -> None:
    disk.write(FIRST)
    disk.write(FIRST[:40])
    disk.write(text(8, 12))
    cache = toy_cache(hybrid=True)
    serve(cache, FIRST[:40])
    view = with_disk(overview(cache, ""), disk.store)
    tiers = {(each.start, each.end): each.tiers for each in view.stretches}
    assert tiers == {(0, 40): ("host", "disk"), (40, 60): ("disk",), (0, 12): ("disk",)}
    (deeper,) = (each for each in view.stretches if each.end == 60)
    assert view.stretches[deeper.above or 0].end == 40
    assert deeper.bytes_own >= 20 * ROW_BYTES + STATE_BYTES
    assert view.totals.disk_slots_own == 3
    assert view.totals.disk_bytes == disk.store.bytes_kept > 0
    assert with_disk(overview(cache, "x"), disk.store).stretches == ()


def test_a_boundary_that_only_the_disk_has_is_kept_there(disk: Disk) -> None:
    disk.write(FIRST[:40])
    cache = toy_cache(hybrid=True)
    cache.disk = DiskTier(disk.store)
    asked = prompt([*SECOND], head=40, end=70)
    assert kept_tiers(cache, asked) == ("disk", None)
    serve(cache, FIRST[:40])
    assert kept_tiers(cache, asked) == ("host", None)
    cache.disk.close()

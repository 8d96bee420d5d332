"""Memory and disk as one: what either has is never read again, and is what was read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flm.core.finding import FateKind
from flm.core.prompt import BoundaryKind
from flm.prefix.disk.frames import HEAD
from tests.pure.toy import (
    LOGITS_BYTES,
    ROW_BYTES,
    STATE_BYTES,
    begin,
    both,
    prompt,
    snapshot_bytes,
    text,
)
from tests.pure.toy_disk import ToyDisk

A, B = text(1, 24), text(2, 24)
ROOM = 24 + 8  # tokens: for one of them, and a few more
Make = Callable[..., ToyDisk]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda **how: ToyDisk(tmp_path / "disk", **how)


def small(hybrid: bool) -> int:
    return snapshot_bytes(ROOM, hybrid=hybrid)


@both
def test_what_memory_gave_up_comes_back_from_the_disk(make: Make, hybrid: bool) -> None:
    disk = make(hybrid=hybrid, bytes_max=small(hybrid))
    assert disk.ask(A) == 0
    assert disk.spill() == 1
    assert disk.ask(B) == 0
    assert disk.cache.slot_count == 1
    assert disk.ask([*A, 7, 8]) == len(A)
    assert disk.tier.counters.reads == 1


@both
def test_an_identical_prompt_comes_back_with_its_logits(make: Make, hybrid: bool) -> None:
    disk = make(hybrid=hybrid)
    disk.ask(A)
    disk.restart()
    assert disk.ask(A) == len(A)
    assert disk.ask(A) == len(A)
    assert disk.tier.counters.reads == 1, "from then on memory has it"


@both
def test_a_restart_loses_nothing(make: Make, hybrid: bool) -> None:
    disk = make(hybrid=hybrid)
    chats = [[*text(1, 10), *text(seed, 14)] for seed in range(2, 6)]
    for chat in chats:
        disk.ask(chat, head=10, end=24)
    disk.restart()
    assert disk.cache.slot_count == 0
    assert [disk.ask([*chat, 3]) for chat in chats] == [24] * 4
    assert disk.tier.counters.read_bytes < 4 * snapshot_bytes(24), "what they share is read once"


@both
def test_a_kill_loses_nothing_that_was_written(make: Make, hybrid: bool) -> None:
    disk = make(hybrid=hybrid)
    disk.ask(A)
    disk.spill()
    disk.ask(B)
    assert disk.cache.spill(all_of_it=True)  # it waits for its thread
    disk.kill()
    assert disk.ask([*B, 1]) == 0
    assert disk.ask([*A, 1]) == len(A)


@both
def test_only_what_the_disk_lacks_is_written(make: Make, hybrid: bool) -> None:
    disk = make(hybrid=hybrid)
    disk.ask(A, turn=24)
    disk.spill()
    before = disk.tier.counters.write_bytes
    disk.ask([*A, *B[:4]], turn=28)
    disk.spill()
    head = HEAD.size
    grown = 4 * ROW_BYTES + head + LOGITS_BYTES + head + hybrid * (STATE_BYTES + head)
    assert disk.tier.counters.write_bytes == before + grown
    assert disk.spill() == 0


@both
def test_only_what_memory_lacks_is_read(make: Make, hybrid: bool) -> None:
    disk = make(hybrid=hybrid)
    disk.ask([*A, *B], end=48)
    disk.restart()
    disk.serve(prompt([*A, 1], turn=24, end=25))
    fetch = disk.begin_fetch([*A, *B, 5])
    assert fetch
    assert fetch.bytes_reserved == 24 * ROW_BYTES + disk.cache.state_bytes
    disk.tier.reads.run_all()
    assert disk.tier.counters.read_bytes == 24 * ROW_BYTES + hybrid * (STATE_BYTES + HEAD.size)
    fetch.close()


@both
def test_room_is_taken_before_a_fetch_and_the_bound_holds(make: Make, hybrid: bool) -> None:
    disk = make(hybrid=hybrid, bytes_max=small(hybrid))
    disk.ask(A)
    disk.spill()
    disk.ask(B)
    disk.spill()
    fetch = disk.begin_fetch([*A, 1])
    assert fetch
    assert disk.cache.bytes_kept == 0, "it made room"
    assert disk.begin_fetch([*B, 1]) is None, "there is room for one at a time"
    assert disk.ask([5, 6, 7, *B]) == 0
    assert not disk.nodes(), "nor is there for what was read meanwhile"
    disk.tier.reads.run_all()
    assert fetch.land()
    disk.check()
    fetch.close()
    assert disk.ask([*A, 1]) == len(A)


@both
def test_what_a_fetch_hangs_on_stays_until_it_lands(make: Make, hybrid: bool) -> None:
    disk = make(hybrid=hybrid, bytes_max=snapshot_bytes(24) + snapshot_bytes(16))
    whole = [*A, *B[:8]]
    disk.ask(whole, head=12, end=32)
    disk.restart()
    disk.ask(A[:12], turn=12)  # memory has this much
    fetch = disk.begin_fetch([*whole, 1])
    assert fetch
    for seed in range(3, 6):  # others press
        disk.ask(text(seed, 10))
    disk.tier.reads.run_all()
    assert fetch.land()
    fetch.close()
    disk.check()
    assert disk.serve(prompt([*whole, 1], end=33)) == 32


@both
@pytest.mark.parametrize("kept", [4, 17, 32])
def test_another_may_keep_a_part_of_it_meanwhile(make: Make, hybrid: bool, kept: int) -> None:
    disk = make(hybrid=hybrid)
    whole = [*A, *B[:8]]
    disk.ask(whole)
    disk.restart()
    fetch = disk.begin_fetch([*whole, 1])
    assert fetch
    disk.serve(prompt([*whole[:kept], 9, 9], turn=kept, end=kept + 2))  # and parts an edge
    disk.tier.reads.run_all()
    fetch.land()
    fetch.close()
    assert disk.serve(prompt([*whole, 1], end=33)) == 32
    for node in disk.cache.trie.nodes():
        for array in node.rows.values():
            held = array.base.nbytes if array.base is not None else array.nbytes
            assert held <= node.rows_bytes, "a row is kept alive that nobody counts"


@both
def test_the_edge_it_hangs_on_may_be_split_meanwhile(make: Make, hybrid: bool) -> None:
    disk = make(hybrid=hybrid)
    whole = [*A, *B[:8]]
    disk.ask(whole)
    disk.restart()
    disk.serve(prompt([*A[:20], 3, 3], turn=20, end=22))
    fetch = disk.begin_fetch([*whole, 1])
    disk.serve(prompt([*A[:11], 4, 4], turn=11, end=13))
    disk.tier.reads.run_all()
    assert fetch
    assert fetch.land()
    fetch.close()
    assert disk.serve(prompt([*whole, 1], end=33)) == 32


@both
def test_requests_that_need_the_same_share_one_fetch(make: Make, hybrid: bool) -> None:
    disk = make(hybrid=hybrid)
    disk.ask(A)
    disk.restart()
    first, second = disk.begin_fetch([*A, 1]), disk.begin_fetch([*A, 2])
    assert first
    assert first is second
    first.close()  # the one that asked first goes
    disk.tier.reads.run_all()
    assert second.land()
    assert second.land(), "told to each"
    second.close()
    assert disk.cache.fetches == []
    assert disk.serve(prompt([*A, 2], end=25)) == len(A)
    assert disk.tier.counters.reads == 1


def test_who_needs_the_logits_does_not_share_with_who_does_not(make: Make) -> None:
    disk = make(hybrid=True)
    disk.ask(A, turn=10, end=24)
    disk.restart()
    longer, same = disk.begin_fetch([*A, 1]), disk.begin_fetch(A)
    assert longer
    assert same
    disk.tier.reads.run_all()
    for fetch in {longer, same}:
        assert fetch.land()
        fetch.close()
    assert disk.serve(prompt(A, end=24)) == 24


@both
@pytest.mark.parametrize("landed", [False, True])
def test_a_fetch_nobody_waits_for_leaves_nothing_behind(
    make: Make, hybrid: bool, landed: bool
) -> None:
    disk = make(hybrid=hybrid)
    disk.ask(A)
    disk.restart()
    fetch = disk.begin_fetch([*A, 1])
    assert fetch
    if landed:
        disk.tier.reads.run_all()
    fetch.close()
    disk.tier.reads.run_all()
    disk.check()
    assert (disk.cache.bytes_coming, disk.cache.bytes_kept) == (0, 0)
    assert not disk.cache.trie.roots
    assert disk.ask([*A, 1]) == len(A)


@both
def test_a_broken_entry_is_set_aside_once_and_its_request_runs_cold(
    make: Make, hybrid: bool
) -> None:
    disk = make(hybrid=hybrid)
    disk.ask(A)
    disk.restart()
    [path] = disk.folder.glob("*.rows")
    torn = bytearray(path.read_bytes())
    torn[50] ^= 1
    path.write_bytes(torn)
    first, second = disk.begin_fetch([*A, 1]), disk.begin_fetch([*A, 2])
    assert first is second
    assert first
    disk.tier.reads.run_all()
    assert not first.land()
    assert not first.land(), "told to each"
    first.close()
    first.close()
    assert [fate.kind for fate in disk.fates(A)] == [FateKind.BROKEN]
    assert disk.begin_fetch([*A, 1]) is None
    assert disk.ask([*A, 1]) == 0
    assert len(list((disk.folder / "quarantine").iterdir())) == 1
    assert disk.tier.counters.broken == 1
    assert len(disk.log.having("cannot be used")) == 1


def test_what_was_cleared_while_it_was_fetched_is_not_called_broken(make: Make) -> None:
    disk = make(hybrid=True)
    disk.ask(A)
    disk.restart()
    fetch = disk.begin_fetch([*A, 1])
    assert fetch
    disk.cache.clear("")
    disk.cache.clear_disk("")
    disk.tier.reads.run_all()
    assert not fetch.land()
    fetch.close()
    disk.check()
    assert disk.fates(A) == ()
    assert disk.log.warnings == []


@both
def test_what_is_sooner_read_anew_is_not_fetched(make: Make, hybrid: bool) -> None:
    disk = make(hybrid=hybrid)
    disk.ask(A)
    disk.restart()
    asked = prompt([*A, 1], end=25)
    assert disk.cache.fetch(asked, 1e9) is None
    disk.check()
    assert not disk.cache.trie.roots
    fetch = disk.cache.fetch(asked, 1.0)
    assert fetch
    fetch.close()


def test_less_than_the_least_gain_is_not_fetched(make: Make) -> None:
    disk = make(hybrid=True, gain_min=8)
    disk.ask([*A, *B], turn=24, end=48)
    disk.restart()
    disk.ask(A, turn=20)
    assert disk.begin_fetch([*A, 1]) is None, "24 to 20"
    fetch = disk.begin_fetch([*A, *B, 1])
    assert fetch
    fetch.close()


@both
def test_clear_takes_a_domain_from_memory_and_disk_and_no_other(make: Make, hybrid: bool) -> None:
    disk = make(hybrid=hybrid)
    for domain in ("a", "b"):
        assert disk.ask(A, domain=domain) == 0, "domains do not see each other"
    disk.spill()
    assert disk.cache.clear("a") + disk.cache.clear_disk("a") == 2
    disk.check()
    assert (disk.on_disk("a"), disk.on_disk("b")) == ([], [24])
    assert disk.ask([*A, 1], domain="a") == 0
    disk.restart()
    assert disk.ask([*A, 1], domain="b") == 24
    assert disk.ask([*A, 1], domain="") == 0


@both
def test_look_changes_nothing_and_knows_the_disk(make: Make, hybrid: bool) -> None:
    disk = make(hybrid=hybrid)
    disk.ask(A)
    disk.restart()
    finding = disk.cache.look(prompt([*A, 1], end=25))
    assert (finding.offset, finding.tier) == (24, "disk")
    assert not disk.cache.trie.roots
    assert not disk.tier.reads.jobs
    disk.ask([*A, 1])
    assert disk.cache.look(prompt([*A, 1, 2], end=26)).tier == "host"


@pytest.mark.parametrize("kind", [BoundaryKind.HEAD, BoundaryKind.TURN])
def test_what_comes_back_is_of_the_kind_it_was(make: Make, kind: BoundaryKind) -> None:
    disk = make(hybrid=True)
    disk.ask(A, **{kind.value: 24})
    disk.restart()
    disk.ask([*A, 1], end=25)
    slot = disk.nodes()[24].slot
    assert slot
    assert (slot.kind, slot.on_disk) == (kind, True)
    writes = len(disk.on_disk())
    assert disk.spill() == 1, "what came from there is not written again"
    assert len(disk.on_disk()) == writes + 1


@both
def test_transit_lets_go_of_what_the_disk_has(make: Make, hybrid: bool) -> None:
    disk = make(hybrid=hybrid, transit=True)
    disk.ask(A)
    assert disk.spill(all_of_it=False) == 1, "at once, however empty memory is"
    assert (disk.cache.slot_count, disk.cache.bytes_kept) == (0, 0)
    assert disk.ask([*A, 1]) == 24
    disk.spill(all_of_it=False)
    assert disk.cache.bytes_kept == 0
    assert disk.ask([*A, 1]) == 25


@both
def test_what_is_cleared_in_memory_is_fetched_again_while_the_disk_has_it(
    make: Make, hybrid: bool
) -> None:
    """Though deeper rows are there still, for a request that is on them."""
    disk = make(hybrid=hybrid)
    tokens = text(1, 100)
    disk.ask(tokens[:60])
    disk.spill()
    disk.ask(tokens)
    lease, _ = begin(disk.cache, prompt([*tokens, 1, 2, 3], end=103))
    disk.cache.clear()
    assert disk.ask([*tokens, 7, 8]) >= 59
    lease.close()
    disk.check()


def test_clearing_twice_clears(make: Make) -> None:
    disk = make(hybrid=True)
    disk.ask(A)
    disk.ask(B)
    lease, _ = begin(disk.cache, prompt([*A, 1]))
    assert disk.cache.spill(all_of_it=True)
    disk.cache.clear()
    disk.tier.writes.run_all()
    disk.cache.clear()
    lease.close()
    disk.check()
    assert disk.cache.bytes_kept == 0

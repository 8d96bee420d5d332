"""What goes from memory to the disk, and when: lazily, one at a time, and before it is lost."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from flm.core.finding import FateKind
from flm.core.prompt import BoundaryKind
from flm.prefix.spill import OFFER_S
from tests.pure.disk import MIB
from tests.pure.toy import LOGITS_BYTES, ROW_BYTES, begin, both, prompt, snapshot_bytes, text
from tests.pure.toy_disk import ToyDisk

A, B, C = text(1, 24), text(2, 24), text(3, 24)
ONE = snapshot_bytes(24)
Make = Callable[..., ToyDisk]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda **how: ToyDisk(tmp_path / "disk", **how)


@both
def test_nothing_is_written_while_memory_is_less_than_half_full(make: Make, hybrid: bool) -> None:
    one = snapshot_bytes(24, hybrid=hybrid)
    disk = make(hybrid=hybrid, bytes_max=3 * one)
    disk.ask(A)
    assert not disk.cache.spill()
    disk.ask(B)
    assert disk.spill(all_of_it=False) == 2, "each step may begin another"
    assert disk.on_disk() == [24, 24]


def test_one_is_written_at_a_time_and_the_longest_unused_first(make: Make) -> None:
    disk = make(hybrid=True, bytes_max=4 * ONE)
    for tokens in (A, B, C):
        disk.ask(tokens)
    disk.ask([*A, 1], turn=25)  # used again
    assert disk.cache.spill()
    assert not disk.cache.spill(), "one is being written"
    disk.tier.writes.run_all()
    assert [disk.store.holds("", prompt(each).packed) for each in (A, B, C)] == [False, True, False]


def test_in_a_quiet_moment_the_newest_goes_first(make: Make) -> None:
    disk = make(hybrid=True)
    disk.ask(A)
    disk.ask(B)
    assert disk.cache.spill(all_of_it=True)
    disk.tier.writes.run_all()
    assert disk.store.holds("", prompt(B).packed)
    assert disk.spill() == 1
    assert disk.spill() == 0


def test_what_its_conversation_has_outgrown_is_not_written(make: Make) -> None:
    disk = make(hybrid=True)
    disk.ask(A, turn=24)
    disk.ask([*A, *B], turn=48)
    disk.ask([*A, *B, *C], turn=72)
    assert disk.spill() == 1
    assert disk.on_disk() == [72]
    disk.restart()
    assert disk.ask([*A, *B, *C, 1]) == 72


@both
def test_what_is_being_written_is_not_given_up(make: Make, hybrid: bool) -> None:
    one = snapshot_bytes(24, hybrid=hybrid)
    disk = make(hybrid=hybrid, bytes_max=one + 8 * ROW_BYTES)
    disk.ask(A)
    assert disk.cache.spill()
    disk.ask(B)
    assert 24 in disk.nodes()
    assert disk.cache.slot_count == 1, "there was no room for the other"
    assert disk.serve(prompt([*A, 1], turn=24)) == 24
    disk.tier.writes.run_all()
    disk.ask(B)
    assert disk.ask(B) == 24, "now there is"


@both
@pytest.mark.parametrize("cut", [1, 11, 23])
def test_its_edge_is_not_split_while_it_is_written(make: Make, hybrid: bool, cut: int) -> None:
    """For its rows would be held twice, and counted once."""
    disk = make(hybrid=hybrid)
    disk.ask(A)
    assert disk.cache.spill(all_of_it=True)
    before = disk.cache.bytes_kept
    disk.ask([*A[:cut], *B], turn=cut, end=cut + 24)
    assert disk.cache.bytes_kept == before
    disk.tier.writes.run_all()
    disk.ask([*A[:cut], *B], turn=cut, end=cut + 24)
    assert disk.cache.bytes_kept > before
    assert disk.serve(prompt([*A, 1], turn=24)) == 24, "in memory both halves are right"
    disk.kill()
    assert disk.ask([*A, 1]) == 24


@both
def test_its_logits_may_come_while_it_is_written(make: Make, hybrid: bool) -> None:
    disk = make(hybrid=hybrid)
    disk.ask([*A, 1], turn=24)  # which keeps none
    assert disk.cache.spill(all_of_it=True)
    disk.serve(prompt(A, turn=24))
    slot = disk.nodes()[24].slot
    assert slot
    assert slot.logits is not None
    disk.tier.writes.run_all()
    assert (slot.writing, slot.on_disk) == (None, False), "it is, but for its logits"
    before = disk.tier.counters.write_bytes
    assert disk.spill() == 1
    assert disk.tier.counters.write_bytes < before + 2 * LOGITS_BYTES + 32
    disk.restart()
    assert disk.ask(A) == 24


@both
def test_what_the_disk_refuses_stays_and_is_not_offered_at_once(make: Make, hybrid: bool) -> None:
    disk = make(hybrid=hybrid, transit=True, disk_bytes_max=90_000)
    long = text(4, 3_000)
    disk.ask(long)
    assert disk.spill(all_of_it=False) == 1
    assert not disk.cache.spill()
    assert disk.ask([*long, 1]) == 3_000, "memory has it"
    assert len(disk.log.having("has no room on the disk")) == 1
    disk.restart()
    assert disk.ask([*long, 1]) == 0


def test_what_the_disk_refused_is_offered_again_when_there_may_be_room(make: Make) -> None:
    disk = make(hybrid=True, transit=True, disk_bytes_max=90_000)
    long = text(4, 3_000)
    disk.ask(long)
    assert disk.spill(all_of_it=False) == 1
    disk.store._holdings.bytes_max = MIB
    assert not disk.cache.spill()
    disk.later_s += OFFER_S
    assert disk.spill(all_of_it=False) == 1
    assert disk.on_disk() == [3_000]


def test_what_the_disk_always_refuses_is_offered_ever_more_rarely(make: Make) -> None:
    disk = make(hybrid=True, transit=True, disk_bytes_max=90_000)
    disk.ask(text(4, 3_000))
    offered = []
    for _ in range(200):
        offered.append(disk.spill(all_of_it=False))
        disk.later_s += OFFER_S
    assert set(offered) == {0, 1}
    assert sum(offered) <= 2 + math.log2(len(offered))


def test_a_write_that_fails_is_not_tried_for_ever(make: Make) -> None:
    disk = make(hybrid=True)

    def bug(item: object, pace: object) -> int:
        raise AssertionError("a bug")

    disk.ask(A)
    disk.store.write = bug  # type: ignore[method-assign, assignment]
    assert disk.spill() == 1
    assert disk.serve(prompt([*A, 1], turn=24)) == 24
    disk.restart()


def test_clear_reaches_what_waits_to_be_written_and_what_is_being_written(make: Make) -> None:
    disk = make(hybrid=True)
    disk.ask(A)
    disk.ask(B)
    assert disk.cache.spill(all_of_it=True)
    assert disk.cache.spill(all_of_it=True)
    write, begun = disk.store.write, []

    def clearing(item: object, pace: object) -> int:
        """Half-way through the first."""

        def step(count: int) -> None:
            if not begun:
                begun.append(disk.cache.clear() + disk.cache.clear_disk())

        return write(item, step)  # type: ignore[arg-type]

    disk.store.write = clearing  # type: ignore[method-assign, assignment]
    disk.tier.writes.run_all()
    assert begun == [2]
    disk.cache.reap()
    disk.check()
    assert (disk.cache.bytes_kept, disk.on_disk()) == (0, [])
    disk.restart()
    assert disk.ask([*A, 1]) == disk.ask([*B, 1]) == 0


def test_what_a_request_uses_is_not_cleared_under_it(make: Make) -> None:
    disk = make(hybrid=True)
    disk.ask(A)
    lease, toy = begin(disk.cache, prompt([*A, 1]))
    assert disk.cache.clear() + disk.cache.clear_disk() == 1
    assert lease.snapshots[-1].end == toy.length == 24
    assert disk.cache.look(prompt([*A, 1])).offset == 0, "nobody else starts from it"
    lease.close()
    disk.check()
    assert disk.cache.bytes_kept == 0


def test_what_memory_gives_up_was_evicted_only_if_the_disk_lacks_it(make: Make) -> None:
    disk = make(hybrid=True, bytes_max=ONE + 8)
    disk.ask(A)
    disk.spill()
    disk.ask(B)
    assert disk.fates(A) == ()
    disk.ask(C)
    assert [fate.kind for fate in disk.fates(B)] == [FateKind.EVICTED]
    assert disk.fates(B)[0].boundary is BoundaryKind.END
    assert disk.cache.look(prompt([*A, 1])).offset == 24


def test_closing_writes_again_what_the_disk_has_lost(make: Make) -> None:
    disk = make(hybrid=True)
    disk.ask(A)
    disk.spill()
    disk.store.clear()
    disk.restart()
    assert disk.on_disk() == [24]


def test_closing_writes_all_that_the_disk_lacks(make: Make) -> None:
    disk = make(hybrid=True)
    for seed in range(9):
        disk.ask(text(seed, 20))
    assert disk.on_disk() == []
    disk.restart()
    assert disk.on_disk() == [20] * 9

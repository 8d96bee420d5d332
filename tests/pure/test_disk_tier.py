"""The tier's threads: what lands says so, writes keep to a rate, and prices are learned."""

from collections.abc import Callable
from pathlib import Path
from threading import Event, Timer

import pytest

from flm.prefix.disk.frames import HEAD
from flm.prefix.disk.stored import BrokenEntry, Stored, Unwritten
from flm.prefix.disk.tier import READ_BYTES_PER_S, READ_FIXED_S, DiskTier
from tests.pure.disk import HYBRID, LONG, WINDOW, Disk, files

WAIT_S = 30


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_what_is_put_can_be_fetched_and_each_says_that_it_landed(tmp_path: Path) -> None:
    disk, landed = Disk(tmp_path, HYBRID), []
    tier = DiskTier(disk.store, notify=lambda: landed.append(None))
    put = tier.put(disk.item(LONG, logits=True))
    size = put.result(WAIT_S)
    assert size == sum(files(disk).values())
    stored = disk.find(LONG)
    assert stored
    loaded = tier.fetch(stored, 3).result(WAIT_S)
    disk.compare(LONG, loaded)
    assert loaded.start == 3
    tier.close()
    assert len(landed) == 2
    counters = tier.counters
    assert (counters.writes, counters.write_bytes) == (1, size)
    assert (counters.reads, counters.read_bytes) == (1, stored.bytes(3))
    assert counters.broken == tier.pending_bytes == 0


def test_a_broken_entry_fails_the_fetch_and_is_counted_once(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID)
    disk.write(LONG)
    tier = DiskTier(disk.store)
    stored = disk.find([*LONG, 1])
    assert stored
    (disk.folder / f"{stored.entry}.state").write_bytes(b"torn")
    for _ in range(2):
        error = tier.fetch(stored, 0).exception(WAIT_S)
        assert isinstance(error, BrokenEntry)
    assert error.gone
    assert tier.counters.broken == 1
    tier.close()


def test_what_is_being_fetched_stays(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID)
    disk.write(LONG)
    stored = disk.find([*LONG, 1])
    assert stored
    tier = DiskTier(disk.store)
    first, free = Event(), Event()
    read = disk.store.read

    def slow(stored: Stored, start: int) -> object:
        first.set()
        assert free.wait(WAIT_S)
        return read(stored, start)

    disk.store.read = slow  # type: ignore[method-assign, assignment]
    fetching = tier.fetch(stored, 0)
    assert first.wait(WAIT_S)
    disk.store._holdings.bytes_max = 1
    assert disk.write([1, 2, 3]) == 0
    assert disk.store._holdings.make_room(0) is False
    free.set()
    disk.compare(LONG, fetching.result(WAIT_S))
    assert disk.store._holdings.make_room(0) is False
    assert disk.store.snapshot_count == 0
    tier.close()


def test_writes_keep_to_the_rate_and_a_pause_earns_no_burst(tmp_path: Path) -> None:
    disk, time = Disk(tmp_path, HYBRID), Time()
    rate = 1000.0
    tier = DiskTier(
        disk.store, write_bytes_per_s_max=rate, clock=time.clock, sleep=time.sleep
    )  # fmt: skip
    total = tier.put(disk.item(LONG)).result(WAIT_S)
    assert time.now == pytest.approx(total / rate)
    window = HEAD.size + WINDOW * HYBRID.row_bytes  # larger than the state
    assert max(time.slept) == pytest.approx(window / rate)
    began = time.now = time.now + 3600
    total = tier.put(disk.item([9, *LONG])).result(WAIT_S)
    assert time.now - began == pytest.approx(total / rate)
    tier.close()


@pytest.mark.parametrize("finish", [True, False])
def test_closing_writes_what_waits_or_gives_it_up_and_waits_for_no_rate(
    tmp_path: Path, finish: bool
) -> None:
    disk = Disk(tmp_path, HYBRID)
    tier = DiskTier(disk.store, write_bytes_per_s_max=1e-3)  # it would take for ever
    puts = [tier.put(disk.item([number, *LONG])) for number in range(4)]
    tier.close(finish=finish)
    assert all(put.done() for put in puts)
    disk.store = disk.open()
    disk.store.check()
    assert disk.store.snapshot_count == (4 if finish else 0)
    assert tier.pending_bytes == 0


@pytest.mark.parametrize("hurried", [False, True])
def test_closing_waits_no_longer_than_it_was_told(tmp_path: Path, hurried: bool) -> None:
    disk = Disk(tmp_path, HYBRID)
    begun, write = Event(), disk.store.write

    def slow(item: Unwritten, pace: Callable[[int], None]) -> int:
        begun.set()

        def endless(count: int) -> None:
            while True:
                pace(count)

        return write(item, endless)

    disk.store.write = slow  # type: ignore[method-assign, assignment]
    tier = DiskTier(disk.store)
    puts = [tier.put(disk.item([number, *LONG])) for number in range(2)]
    assert begun.wait(WAIT_S)
    if hurried:
        Timer(0.05, tier.hurry).start()
    tier.close(within_s=3600 if hurried else 0.05)
    assert [put.result(0) for put in puts] == [0, 0]
    disk.store = disk.open()
    disk.store.check()
    assert disk.store.snapshot_count == 0


def test_what_waits_to_be_written_is_counted(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID)
    size = len(LONG) * HYBRID.row_bytes + HYBRID.state_bytes
    begun, free = Event(), Event()

    def sleep(seconds: float) -> None:
        begun.set()
        assert free.wait(WAIT_S)

    tier = DiskTier(disk.store, sleep=sleep)
    puts = [tier.put(disk.item(LONG)), tier.put(disk.item([1, *LONG[1:]]))]
    assert begun.wait(WAIT_S)
    assert tier.pending_bytes == 2 * size
    free.set()
    assert all(put.result(WAIT_S) for put in puts)
    tier.close()
    assert (tier.pending_bytes, tier.counters.writes) == (0, 2)


def prices(tmp_path: Path, seconds: Callable[[int], float], sizes: list[int]) -> DiskTier:
    """A tier that has seen reads of these sizes, which took so long."""
    disk = Disk(tmp_path, HYBRID)
    disk.write(LONG)
    stored = disk.find([*LONG, 1])
    assert stored
    time = Time()
    tier = DiskTier(disk.store, clock=time.clock)
    read = disk.store.read
    for size in sizes:
        told = Stored(
            stored.offset, stored.kind, stored.entry, stored.parts, 0, size, 0
        )  # fmt: skip

        def slow(stored: Stored, start: int, size: int = size) -> object:
            time.now += seconds(size)
            return read(stored, start)

        disk.store.read = slow  # type: ignore[method-assign, assignment]
        tier.fetch(told, 0).result(WAIT_S)
    tier.close()
    return tier


def test_the_floor_is_learned_from_reads(tmp_path: Path) -> None:
    slow = prices(tmp_path, lambda size: 0.5 + size / 1e8, [1000, 10**9] * 40)
    assert slow.read_bytes_per_s == pytest.approx(1e8, rel=0.1)
    assert slow.read_fixed_s == pytest.approx(0.5, rel=0.1)
    assert (slow.counters.reads, slow.counters.broken) == (80, 0)


def test_restoring_pays_when_it_takes_less_time_than_reading(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID)
    disk.write(LONG)
    stored = disk.find([*LONG, 1])
    assert stored
    tier = DiskTier(disk.store)
    seconds = stored.bytes(0) / READ_BYTES_PER_S + READ_FIXED_S
    assert tier.restore_pays(100, stored, 0, 0.99 * 100 / seconds)
    assert not tier.restore_pays(100, stored, 0, 1.01 * 100 / seconds)
    tier.read_bytes_per_s = 1.0
    assert not tier.restore_pays(len(LONG), stored, 0, 1.0)
    assert tier.restore_pays(1 + int(seconds) + stored.bytes(20), stored, 20, 1.0)
    tier.close()

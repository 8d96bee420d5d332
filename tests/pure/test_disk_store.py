"""The disk's share of the prefix cache: what comes back is what was written."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from flm.core.prompt import BoundaryKind
from flm.memory.layout import MemoryLayout
from flm.prefix.disk import frames
from flm.prefix.disk.frames import RowsFormat
from flm.prefix.disk.stored import BrokenEntry, DiskTaken, DiskUnusable, Piece, Unwritten
from tests.pure.disk import (
    HYBRID,
    LONG,
    STATELESS,
    WINDOW,
    Disk,
    both,
    every,
    files,
    packed,
    rows_of,
)  # fmt: skip

HEAD, TURN, END = BoundaryKind.HEAD, BoundaryKind.TURN, BoundaryKind.END


@every
def test_what_was_written_comes_back_bit_for_bit_after_a_restart(
    tmp_path: Path, layout: MemoryLayout
) -> None:
    disk = Disk(tmp_path / "root", layout)
    disk.write(LONG, END, logits=True)
    for _ in range(2):
        loaded = disk.read(LONG)
        assert (loaded.start, loaded.end) == (0, len(LONG))
        assert loaded.logits is not None
        assert disk.read([*LONG, 1]).end == len(LONG)
        assert disk.read([*LONG, 1]).logits is None
        disk.reopen()


@both
def test_any_part_of_the_rows_can_be_read(tmp_path: Path, layout: MemoryLayout) -> None:
    disk = Disk(tmp_path, layout)
    disk.write(LONG[:9])
    disk.write(LONG, cuts=[3, 8, 9, 10, 17])
    for start in range(len(LONG) + 1):
        assert disk.read([*LONG, 1], start).start == start


@both
def test_rows_are_written_once(tmp_path: Path, layout: MemoryLayout) -> None:
    disk = Disk(tmp_path, layout)
    rows, form = layout.row_bytes, RowsFormat(layout, WINDOW)
    state = frames.HEAD.size + layout.state_bytes if layout.state else 0
    assert disk.write(LONG[:10]) == form.bytes(10) + state
    assert disk.write(LONG[:10]) == 0
    assert disk.write(LONG) == form.bytes(13) + state
    fork = [*LONG[:6], 1, 2, 3]
    assert disk.write(fork) == form.bytes(3) + state < 9 * rows + state
    assert disk.write([*fork, 4], start_only := TURN) == form.bytes(1) + state, start_only
    assert disk.write(LONG[:6], HEAD) == state
    assert disk.store.snapshot_count == 5
    for _ in range(2):
        for tokens in (LONG, fork, LONG[:6], LONG[:10]):
            assert disk.read([*tokens, 9]).end == len(tokens)
        disk.reopen()


def test_only_rows_that_the_disk_lacks_are_asked_for(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID)
    disk.write(LONG[:10])
    late = disk.item(LONG, start=11)
    assert disk.store.write(late) == 0
    assert not disk.holds(LONG)
    assert disk.store.write(disk.item(LONG, start=8)) > 0
    disk.read([*LONG, 1])
    disk.store.check()


def test_with_state_a_prompt_starts_at_snapshots_without_at_any_row(tmp_path: Path) -> None:
    hybrid, stateless = Disk(tmp_path / "h", HYBRID), Disk(tmp_path / "s", STATELESS)
    for disk in (hybrid, stateless):
        disk.write(LONG[:10])
        disk.write(LONG)
    parted = [*LONG[:15], 1, 2]
    assert (hybrid.offset(parted), stateless.offset(parted)) == (10, 15)
    assert (hybrid.offset(LONG[:4]), stateless.offset(LONG[:4])) == (0, 3)
    assert (hybrid.offset(LONG), stateless.offset(LONG)) == (10, len(LONG) - 1)
    assert (hybrid.offset([5]), stateless.offset([5])) == (0, 0)
    assert stateless.read(parted, 3).end == 15


@both
def test_logits_are_added_to_a_snapshot_that_is_there(tmp_path: Path, layout: MemoryLayout) -> None:
    disk = Disk(tmp_path, layout)
    disk.write(LONG, TURN)
    assert disk.offset(LONG) < len(LONG)
    assert disk.write(LONG, END, logits=True) == frames.HEAD.size + 44
    assert disk.write(LONG, END, logits=True) == 0
    for _ in range(2):
        stored = disk.find(LONG)
        assert stored
        assert stored.logits_bytes
        assert stored.bytes(len(LONG)) == len(LONG) * 0 + stored.state_bytes + stored.logits_bytes
        assert disk.read(LONG).logits is not None
        disk.reopen()


def test_domains_do_not_learn_of_each_other(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID)
    disk.write(LONG, domain="alice")
    assert disk.offset([*LONG, 1], "bob") == 0
    assert not disk.holds(LONG, "bob")
    assert disk.write(LONG, domain="bob") > len(LONG) * HYBRID.row_bytes
    assert disk.store.clear("alice") == 1
    disk.store.check()
    assert disk.offset([*LONG, 1], "alice") == 0
    assert disk.read([*LONG, 1], domain="bob").end == len(LONG)
    assert disk.store.clear() == 1
    disk.reopen()
    assert disk.store.snapshot_count == 0
    assert not files(disk)


def test_only_its_user_can_read_it(tmp_path: Path) -> None:
    os.umask(old := os.umask(0))
    try:
        os.umask(0)
        disk = Disk(tmp_path / "a" / "root", HYBRID)
        disk.write(LONG, logits=True)
        for path in (disk.root, *disk.root.rglob("*")):
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path
    finally:
        os.umask(old)


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID)
    disk.write(LONG)
    with pytest.raises(DiskTaken, match="another flm"):
        disk.open()
    assert Disk(tmp_path, HYBRID, source="others").store.snapshot_count == 0
    disk.read([*LONG, 1])
    disk.reopen()


def test_a_pinned_snapshot_stays_until_its_read_landed(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID, bytes_max=200_000)
    disk.write(LONG, END)
    stored = disk.find([*LONG, 1])
    assert stored
    assert disk.store.pin(stored)
    flood(disk, 60)
    disk.compare(LONG, disk.store.read(stored, 0))
    disk.store.unpin(stored)
    flood(disk, 60, first=10_000)
    assert disk.offset([*LONG, 1]) == 0
    assert not disk.store.pin(stored)
    with pytest.raises(BrokenEntry) as caught:
        disk.store.read(stored, 0)
    assert caught.value.gone
    disk.store.check()


def flood(disk: Disk, count: int, *, first: int = 1000, kind: BoundaryKind = END) -> None:
    for index in range(first, first + count):
        disk.write(list(range(index * 50, index * 50 + 40)), kind)


def test_ends_go_before_turns_before_heads_and_of_a_kind_the_longest_unused(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID, bytes_max=200_000)
    disk.write(LONG[:8], HEAD)
    disk.write(LONG[:12], TURN)
    old, young = [1, *LONG], [2, *LONG]
    disk.write(old, END)
    disk.write(young, END)
    assert disk.holds(old)  # and so it is the younger
    seen = []
    for index in range(2000, 2100):
        disk.write(list(range(index * 50, index * 50 + 10)), END)
        seen.append([disk.offset([*tokens, 1]) > 0 for tokens in (young, old, LONG)])
    assert sorted(seen, reverse=True) == seen, "one came back"
    assert [False, True, True] in seen
    assert seen[-1] == [False, False, True]
    flood(disk, 60, kind=HEAD)
    assert disk.offset([*LONG, 1]) == 0, "a head nobody uses goes, once all are heads"


def test_what_nobody_used_for_weeks_goes_first_whatever_it_is(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID, bytes_max=200_000)
    disk.write(LONG[:8], HEAD)
    disk.now += 30 * 24 * 3600
    flood(disk, 60)
    assert disk.offset(LONG) == 0


def test_a_snapshot_larger_than_the_budget_is_skipped_and_said_once(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID, bytes_max=200_000)
    disk.write(LONG)
    huge = list(range(2000))
    assert [disk.write(huge), disk.write(huge)] == [0, 0]
    assert len(disk.warnings) == 1
    assert "--prefix-disk-mb" in disk.warnings[0]
    disk.read([*LONG, 1])
    disk.store.check()


def test_rows_that_lead_nowhere_are_cut_off_behind_a_window(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID, bytes_max=200_000)
    disk.write(LONG, END)
    disk.write(LONG[:5], HEAD)
    before = files(disk)["1.rows"]
    flood(disk, 60)
    disk.reopen()
    assert disk.read([*LONG[:5], 1]).end == 5
    rows = (disk.folder / "1.rows").stat().st_size
    assert rows == RowsFormat(HYBRID, WINDOW).bytes(8) < before


def test_folders_of_others_make_way_and_share_the_bound(tmp_path: Path) -> None:
    stale, live = (Disk(tmp_path, HYBRID, source=name) for name in ("stale", "live"))
    for disk in (stale, live):
        flood(disk, 10)
    stale.store.close()
    here = Disk(tmp_path, HYBRID, bytes_max=300_000, source="here")
    flood(here, 60)
    assert not stale.folder.exists()
    assert live.store.snapshot_count == 10
    live.store.check()
    assert tree_bytes(tmp_path) <= 300_000
    here.store.check()


def tree_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def test_the_reserve_of_free_space_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path, HYBRID)
    folder = disk.store._holdings.folder
    monkeypatch.setattr(type(folder), "free_bytes", lambda self: 10_000_000 - tree_bytes(tmp_path))
    disk.store._holdings.free_min_bytes = 10_000_000 - 250_000
    flood(disk, 100)
    assert tree_bytes(tmp_path) <= 250_000
    assert disk.store.snapshot_count > 10
    disk.store.check()


def test_the_overview_tells_who_hangs_on_whom(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID)
    disk.write(LONG[:5], HEAD, domain="d")
    disk.write(LONG[:9], TURN, domain="d")
    disk.write([*LONG[:7], 1], END, domain="d", logits=True)
    seen = {each.offset: each for each in disk.store.overview()}
    assert seen[5].above is None
    assert seen[9].above == seen[8].above == seen[5].number
    assert seen[8].own_bytes > seen[9].own_bytes > 0
    assert {each.domain for each in seen.values()} == {"d"}
    assert seen[8].kind is END


def test_what_was_cleared_during_a_write_does_not_come_back(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID)
    disk.write(LONG[:6])

    def clear(count: int) -> None:
        disk.store.clear()

    for tokens in (LONG, [1, 2, 3]):
        assert disk.store.write(disk.item(tokens), clear) == 0
        disk.store.check()
        assert not files(disk)


@both
def test_rows_that_only_a_write_will_lead_anywhere_are_no_start(
    tmp_path: Path, layout: MemoryLayout
) -> None:
    """They stay for it, while what they led to is given up."""
    first, second = LONG[:9], [*LONG[:6], 1, 2, 3]
    disk = Disk(tmp_path, layout)
    disk.write(LONG[:3])
    disk.write(first)
    disk.write(second)
    found: set[int] = set()

    def give_up(count: int) -> None:
        disk.store.remove("", packed(first))
        disk.store.remove("", packed(second))
        found.update(disk.offset([*tokens, 7]) for tokens in (first, second, third))

    third = [*second[:8], 4, 5]
    assert disk.store.write(disk.item(third), give_up)
    assert found == {3}
    disk.store.check()
    assert disk.read([*third, 7]).end == len(third)


def test_pieces_may_reach_further_than_the_snapshot(tmp_path: Path) -> None:
    disk = Disk(tmp_path, STATELESS)
    pieces: Sequence[Piece] = [Piece(0, len(LONG), rows_of(STATELESS, LONG, 0, len(LONG)))]
    disk.store.write(Unwritten("", packed(LONG[:6]), TURN, pieces, {}))
    assert disk.read(LONG).end == 6


def test_a_smaller_budget_holds_from_the_start(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID)
    disk.write(LONG, HEAD)
    flood(disk, 60)
    kept = disk.bytes_max = disk.store.bytes_kept - 20_000
    disk.reopen()
    assert disk.store.bytes_kept <= kept
    assert 0 < disk.store.snapshot_count < 61
    disk.read([*LONG, 1])


def test_what_cannot_be_opened_says_what_to_do(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("not a folder")
    with pytest.raises(DiskUnusable, match="file") as caught:
        Disk(place, HYBRID)
    assert "--prefix-disk-mb" in caught.value.fix

"""What breaks, on a disk or on the way to it, is quarantined once and harms no other."""

import errno
import os
from pathlib import Path

import pytest

from flm.core.prompt import BoundaryKind
from flm.memory.layout import MemoryLayout
from flm.prefix.disk import frames
from flm.prefix.disk.frames import RowsFormat
from flm.prefix.disk.stored import BrokenEntry
from tests.pure.disk import (
    HYBRID,
    LONG,
    STATELESS,
    WINDOW,
    Disk,
    both,
    every,
    files,
    logits_of,
    rows_of,
    state_of,
)  # fmt: skip

TURN, END = BoundaryKind.TURN, BoundaryKind.END


def damaged(layout: MemoryLayout) -> list[str]:
    return [".rows", ".logits"] + ([".state"] if layout.state else [])


@both
@pytest.mark.parametrize("how", ["flip", "truncate", "remove"])
def test_what_is_broken_fails_once_and_harms_no_other(
    tmp_path: Path, layout: MemoryLayout, how: str
) -> None:
    other = [7, 8, 9, 10, 11, 12]
    for suffix in damaged(layout):
        for position in (0, 5, 30, -1):
            disk = Disk(tmp_path / f"{suffix}{position}", layout)
            disk.write(LONG, END, logits=True)
            disk.write([*LONG[:5], 1, 2, 3], TURN)
            disk.write(other, END, logits=True)
            name = min(name for name in files(disk) if name.endswith(suffix))
            harm(disk.folder / name, how, position)
            with pytest.raises(BrokenEntry, match=name) as caught:
                disk.read(LONG)
            assert not caught.value.gone
            assert (disk.folder / "quarantine" / name).exists() == (how != "remove")
            disk.store.check()
            assert disk.read(other).logits is not None
            if suffix == ".rows":
                assert disk.find(LONG) is None
            assert not disk.holds(LONG)
            disk.reopen()
            assert not disk.holds(LONG)
            disk.write(LONG, END, logits=True)
            disk.read(LONG)
            disk.store.close()


def harm(path: Path, how: str, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    if how == "flip":
        path.write_bytes(data)
    elif how == "truncate":
        os.truncate(path, path.stat().st_size - 1)
    else:
        path.unlink()


@every
def test_every_byte_of_a_file_is_checked(tmp_path: Path, layout: MemoryLayout) -> None:
    disk = Disk(tmp_path, layout)
    disk.write(LONG[:5], logits=True)
    stored = disk.find(LONG[:5])
    assert stored
    disk.store.close()
    frame = frames.Frame(stored.entry, 0, 5)
    extent, form = range(5), RowsFormat(layout, WINDOW)

    def read(name: str, file: int) -> None:
        if name.endswith(".rows"):
            rows = rows_of(layout, LONG, 0, 5)
            form.read(file, stored.parts[0].segment, extent, extent, rows)
        else:
            like = state_of(layout, LONG) if "state" in name else {"": logits_of(LONG)}
            frame.read(file, 0, [array.copy() for array in like.values()])

    for name in files(disk):
        path = disk.folder / name
        for position in range(path.stat().st_size):
            harm(path, "flip", position)
            with path.open("rb") as file, pytest.raises(frames.Torn):
                read(name, file.fileno())
            harm(path, "flip", position)
    disk.store = disk.open()
    disk.read(LONG[:5])


def test_what_is_set_aside_is_bounded(tmp_path: Path) -> None:
    disk = Disk(tmp_path, STATELESS)
    for count in range(5, 17):
        disk.write(LONG[:count])
        (name,) = files(disk)
        harm(disk.folder / name, "flip", 30)
        with pytest.raises(BrokenEntry, match=name):
            disk.read(LONG)
        disk.store.check()
    assert len(list((disk.folder / "quarantine").iterdir())) == 8
    assert (disk.folder / "quarantine" / name).exists()


def test_a_page_in_anothers_place_shows(tmp_path: Path) -> None:
    form = frames.Frame(1, 0, 1)
    data = [rows_of(HYBRID, LONG, 0, 1)["key"].repeat(2000, axis=1)]
    swapped = data[0].reshape(-1).view("uint8").copy()
    swapped[:4096], swapped[4096:8192] = swapped[4096:8192].copy(), swapped[:4096].copy()
    assert form.head(data) != form.head([swapped])
    assert form.head(data) == form.head([data[0].copy()])


def test_files_without_a_row_and_rows_without_a_file_go_at_the_next_start(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID)
    disk.write(LONG[:10])
    disk.write(LONG)
    disk.write([*LONG[:4], 1, 2])
    disk.store.close()
    (disk.folder / "3.rows").unlink()  # of LONG, behind 10
    (disk.folder / "77.rows").write_bytes(b"stray")
    (disk.folder / "78.state.new").write_bytes(b"unfinished")
    disk.store = disk.open()
    disk.store.check()
    assert disk.offset([*LONG, 1]) == 10
    assert disk.offset([*LONG[:4], 1, 2, 3]) == 6
    assert "77.rows" not in files(disk)


def test_a_damaged_index_costs_the_entries_not_the_server(tmp_path: Path) -> None:
    disk = Disk(tmp_path, STATELESS)
    disk.write(LONG)
    disk.store.close()
    path = disk.folder / "index.sqlite"
    data = path.read_bytes()
    for position in range(0, len(data), 211):
        torn = bytearray(data)
        torn[position] ^= 0x55
        path.write_bytes(torn)
        disk.store = disk.open()
        disk.store.check()
        if disk.offset([*LONG, 1]):
            disk.read([*LONG, 1])  # what is still found is right
        disk.store.clear()
        disk.write(LONG)
        disk.store.close()
        data = path.read_bytes()


def test_a_folder_of_another_identity_is_never_restored_from(tmp_path: Path) -> None:
    disk = Disk(tmp_path, HYBRID)
    disk.write(LONG)
    disk.store.close()
    place = disk.folder / "identity.json"
    place.write_text(place.read_text().replace("avx2", "amx"))
    disk.store = disk.open()
    assert disk.offset([*LONG, 1]) == 0
    assert not files(disk)
    disk.store.check()
    disk.write(LONG)
    disk.reopen()
    disk.read([*LONG, 1])


@pytest.mark.parametrize("fail_at", range(1, 40, 2))
def test_a_full_disk_loses_the_write_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    """Every system call of a write fails once, in turn."""
    disk = Disk(tmp_path, HYBRID)
    disk.write(LONG[:10], logits=True)
    calls = 0

    def failing(real: object) -> object:
        def call(*arguments: object) -> object:
            nonlocal calls
            calls += 1
            if calls == fail_at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments)  # type: ignore[operator]

        return call

    with monkeypatch.context() as patch:
        for name in ("writev", "fsync", "ftruncate", "rename"):
            patch.setattr(os, name, failing(getattr(os, name)))
        written = disk.write(LONG, logits=True)
    assert (written == 0) == (calls >= fail_at)
    assert len(disk.warnings) == (calls >= fail_at)
    disk.store.check()
    assert disk.holds(LONG) == (written > 0)
    disk.read([*LONG[:10], 1])
    assert bool(disk.write(LONG, logits=True)) == (written == 0)
    disk.reopen()
    disk.read(LONG)

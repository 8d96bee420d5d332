"""kill -9 at any moment corrupts nothing, and loses nothing older than the last write."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flm.core.prompt import BoundaryKind
from flm.memory.layout import MemoryLayout
from flm.prefix.disk import folder
from flm.prefix.disk.folder import Folder
from flm.prefix.disk.frames import RowsFormat
from flm.prefix.disk.index import bytes_added
from flm.prefix.disk.stored import DiskUnusable
from tests.pure.disk import HYBRID, MIB, QUICK, STATELESS, WINDOW, Disk, both, identity

ROUNDS = 4
BYTES_MAX, PLENTY = 220_000, 4 * MIB  # with one room lacks soon, with the other never
KINDS = list(BoundaryKind)
LAYOUTS = {"stateless": STATELESS, "hybrid": HYBRID}


def prompts(seed: int) -> list[tuple[list[int], BoundaryKind]]:
    """What one round writes: conversations that grow and fork."""
    chance = random.Random(seed)
    said = [[chance.randrange(100) for _ in range(chance.randrange(5, 30))]]
    for _ in range(300):
        one = chance.choice(said[-6:])
        cut = chance.choice([len(one), chance.randrange(1, len(one) + 1)])
        said.append(one[:cut] + [chance.randrange(100) for _ in range(chance.randrange(1, 12))])
    return [(tokens, chance.choice(KINDS)) for tokens in said]


def write_until_killed(root: Path, layout: str, bytes_max: int, seed: int) -> None:
    """Says the number of each prompt once the store says that it has it."""
    disk = Disk(root, LAYOUTS[layout], bytes_max=bytes_max)
    for number, (tokens, kind) in enumerate(prompts(seed)):
        if disk.write(tokens, kind, logits=kind is BoundaryKind.END):
            os.write(1, b"%d\n" % number)


def own_for_ever(root: Path) -> None:
    """As one that was stopped while it made room."""
    owned = Folder(root, identity(STATELESS))
    with owned.sole_writer():
        os.write(1, b"mine\n")
        signal.pause()


@pytest.fixture
def quick_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=QUICK) as path:
        yield Path(path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_killed_at_any_moment(quick_path: Path, layout: str) -> None:
    chance = random.Random(5)
    survived = 0
    for seed in range(ROUNDS):
        bytes_max = (BYTES_MAX, PLENTY)[seed % 2]
        root = quick_path / str(bytes_max)
        written = run_and_kill(root, layout, bytes_max, seed, chance.random() ** 2)
        disk = Disk(root, LAYOUTS[layout], bytes_max=bytes_max)
        disk.store.check()
        said = prompts(seed)
        for tokens, _ in said:  # all that is found is whole, written in this round or before
            if disk.find(tokens):
                disk.read(tokens)
        # Of these nothing can have been given up.
        for number in written if bytes_max == PLENTY else written[-1:]:
            tokens = said[number][0]
            assert disk.holds(tokens)
            assert disk.read([*tokens, 1000]).end == len(tokens)
        survived += bool(written)
        for tokens, kind in said[:3]:
            disk.write(tokens, kind)
        disk.store.check()
        assert not disk.warnings
        disk.store.close()
    assert survived >= ROUNDS - 1


def run_and_kill(root: Path, layout: str, bytes_max: int, seed: int, after: float) -> list[int]:
    """Kill a writer once it has written a share of its prompts, or in the middle of the next."""
    call = f"write_until_killed(Path({str(root)!r}), {layout!r}, {bytes_max}, {seed})"
    with begun(call) as process:
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(1 + int(after * 30))]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    assert process.returncode == -signal.SIGKILL
    return [int(line) for line in lines if line.endswith(b"\n")]


def begun(call: str) -> "subprocess.Popen[bytes]":
    """A function of this file, in a process of its own."""
    code = f"from pathlib import Path\nfrom tests.pure.test_disk_crash import *\n{call}"
    place = Path(__file__).resolve().parents[2]
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=place)


def test_a_stopped_owner_holds_nobody_up_and_a_killed_one_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Disk(tmp_path, STATELESS, source="other weights")
    monkeypatch.setattr(folder, "SOLE_WAIT_S", 0.0)
    with begun(f"own_for_ever(Path({str(tmp_path)!r}))") as owner:
        assert owner.stdout
        try:
            assert owner.stdout.readline() == b"mine\n"
            owner.send_signal(signal.SIGSTOP)
            for source in ("weights", "third weights"):
                with pytest.raises(DiskUnusable, match="another flm is making room"):
                    Disk(tmp_path, STATELESS, source=source)
            assert other.write([1, 2, 3]) == 0
            assert len(other.warnings) == 1
            assert "another flm is making room" in other.warnings[0]
        finally:
            owner.kill()
    assert other.write([1, 2, 3]) > 0
    Disk(tmp_path, STATELESS).store.check()


@both
def test_stopped_before_any_system_call(
    tmp_path: Path, layout: MemoryLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever lies there when a process ends, the next one opens: every step, in turn."""
    root, copies = tmp_path / "root", tmp_path / "copies"
    disk = Disk(root, layout, bytes_max=BYTES_MAX)
    old, new = list(range(23)), [0, 1, 2, 3, 70, 71, 72, 73, 74]
    disk.write(old, BoundaryKind.END, logits=True)
    disk.write(old[:6], BoundaryKind.HEAD)
    cut = RowsFormat(layout, WINDOW).bytes(8)

    def copied(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            number = len(list(copies.iterdir())) if copies.exists() else 0
            shutil.copytree(root, copies / str(number))
            return real(*arguments)

        return call

    with monkeypatch.context() as patch:
        for name in ("writev", "fsync", "ftruncate", "truncate", "rename", "unlink"):
            patch.setattr(os, name, copied(getattr(os, name)))
        disk.write(new, BoundaryKind.TURN, logits=True)
    steps = len(list(copies.iterdir()))
    # The end of `old` makes way, and its rows are cut.
    disk.store._holdings.bytes_max = disk.store.bytes_kept + bytes_added(4) + 300
    with monkeypatch.context() as patch:
        patch.setattr(os, "truncate", copied(os.truncate))
        disk.write([60, 61, 62, 63], BoundaryKind.HEAD)
        disk.write([80, 81, 82, 83], BoundaryKind.HEAD)
    assert (disk.folder / "1.rows").stat().st_size == cut
    assert len(list(copies.iterdir())) == steps + 1 > 10
    for copy in copies.iterdir():
        disk = Disk(copy, layout, bytes_max=BYTES_MAX)
        disk.store.check()
        assert disk.read([*old[:6], 9]).end >= 6
        if disk.holds(new):
            disk.read(new)
        disk.write(new, logits=True)
        disk.read(new)
        disk.store.close()

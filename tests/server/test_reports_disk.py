"""What users reported of other servers does not happen here: what was kept outlives the process,
and what is broken is met once.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flm.errors import DeviceFailed
from flm.prefix.disk.store import DiskStore
from flm.prefix.disk.tier import DiskTier
from tests.pure.disk import MIB, identity
from tests.server.reported import LAYOUTS, Servers, say, two_servers, words

kinds = pytest.mark.parametrize("kind", LAYOUTS)
FIRST = [say("system", words(200)), say("user", words(100, 1))]
SECOND = [say("system", words(200)), say("user", words(100, 2))]
MORE = [say("assistant", "So."), say("user", words(80, 5))]


class Machine:
    """A folder that servers keep their prompts in, one after another."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self.template = "t"
        self.warnings: list[str] = []

    @contextmanager
    def started(self) -> Iterator[Servers]:
        layout = LAYOUTS[self.kind]
        owner = replace(identity(layout), template=self.template)
        store = DiskStore(
            self.folder / "disk",
            owner,
            layout,
            bytes_max=64 * MIB,
            free_min_bytes=0,
            warn=self.warnings.append,
        )
        tier = DiskTier(store, write_bytes_per_s_max=None)
        # The null device reads faster than any disk.
        tier.restore_pays = lambda *_: True  # type: ignore[method-assign]
        with two_servers(self.folder, self.kind, disk=tier) as servers:
            yield servers

    def files(self, suffix: str) -> list[Path]:
        return [each for each in self.folder.glob(f"disk/*/*{suffix}") if each.is_file()]

    @property
    def quarantined(self) -> list[str]:
        return [each.name for each in self.folder.glob("disk/*/quarantine/*")]


@pytest.fixture(params=LAYOUTS)
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    return Machine(tmp_path, request.param)


def test_a_restart_forgets_nothing(machine: Machine) -> None:
    """https://github.com/ggml-org/llama.cpp/issues/25913"""
    with machine.started() as servers:
        before = servers.chat(FIRST)
    with machine.started() as servers:
        again, longer = servers.chat(FIRST), servers.chat([*FIRST, *MORE])
        assert again.text == before.text
        assert again.cached == before.length
        assert longer.cached >= before.length - 4
    with machine.started() as servers:
        assert servers.chat([*FIRST, *MORE]).cached == longer.length
    assert not machine.warnings


@pytest.mark.parametrize("asked", [FIRST, SECOND])
def test_a_chat_that_began_after_another_is_found_after_a_restart(
    machine: Machine, asked: list[Any]
) -> None:
    """https://github.com/antirez/ds4/issues/1053"""
    with machine.started() as servers:
        lengths = [servers.chat(FIRST).length, servers.chat(SECOND).length]
    with machine.started() as servers:
        read = servers.chat([*asked, *MORE])
        assert read.cached >= lengths[asked is SECOND] - 4
    with machine.started() as servers:
        for number, chat in enumerate([SECOND, FIRST]):
            assert servers.chat(chat).cached == lengths[1 - number]


# --- https://github.com/antirez/ds4/pull/253: what is broken failed again, and again ---


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("harm", [flip, truncate, Path.unlink])
def test_what_is_broken_is_met_once_and_the_prompt_is_read(
    machine: Machine, harm: Callable[[Path], None], running: bool
) -> None:
    """Whether it breaks before a start, which sees what is lacking, or while a server runs."""
    with machine.started() as servers:
        servers.chat(FIRST)
    files = machine.files(".rows") + machine.files(".state") + machine.files(".logits")
    assert len(files) >= 2
    if not running:
        for file in files:
            harm(file)
    for start in range(3):
        with machine.started() as servers:
            if running and start == 0:
                for file in files:
                    harm(file)
            read = servers.chat(FIRST)
            assert read.cached == (read.length if start else 0)
            assert servers.chat(FIRST).cached == read.length
    told = [line for line in machine.warnings if "is broken" in line]
    assert len(told) == (1 if running or harm is flip else 0)
    assert len(machine.quarantined) <= 1


@pytest.mark.parametrize("suffix", [".rows", ".state", ".logits"])
def test_one_broken_file_costs_no_more_than_what_needs_it(machine: Machine, suffix: str) -> None:
    with machine.started() as servers:
        length = servers.chat(FIRST).length
    for file in machine.files(suffix):
        flip(file)
    with machine.started() as servers:
        read = servers.chat(FIRST)
        assert read.cached == (length if (machine.kind, suffix) == ("rows", ".state") else 0)
    with machine.started() as servers:
        assert servers.chat(FIRST).cached == length


def test_another_template_reuses_nothing_and_breaks_nothing(machine: Machine) -> None:
    with machine.started() as servers:
        length = servers.chat(FIRST).length
    machine.template = "another"
    with machine.started() as servers:
        assert servers.chat(FIRST).cached == 0
    machine.template = "t"
    with machine.started() as servers:
        assert servers.chat(FIRST).cached == length
    assert not machine.warnings
    assert not machine.quarantined


def test_a_disk_that_cannot_be_read_costs_its_entries_and_no_request(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine.started() as servers:
        servers.chat(FIRST)
    with machine.started() as servers:
        with monkeypatch.context() as patched:

            def fails(*_: object) -> None:
                raise OSError(errno.EIO, "Input/output error")

            patched.setattr(os, "preadv", fails)
            read = servers.chat(FIRST)
            assert read.cached == 0
        assert servers.chat(FIRST).cached == read.length
    assert any("Input/output error" in line for line in machine.warnings)


def test_a_snapshot_that_cannot_be_restored_is_met_once_and_the_prompt_is_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine.started() as servers:
        servers.chat(FIRST)
    with machine.started() as servers:
        restore = servers.house.runner.restore

        def fails(lane: int, tokens: Any, snapshots: Any) -> int:
            if snapshots:
                raise DeviceFailed("told to", fix="none")
            return restore(lane, tokens, snapshots)

        monkeypatch.setattr(servers.house.runner, "restore", fails)
        for _ in range(3):
            assert servers.chat([*FIRST, *MORE]).text


def test_a_disk_that_is_full_costs_no_request(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", full)
        with machine.started() as servers:
            first = servers.chat(FIRST)
            assert servers.chat(FIRST).cached == first.length
    assert any("No space left" in line for line in machine.warnings)
    with machine.started() as servers:
        assert servers.chat(FIRST).cached == 0
    with machine.started() as servers:
        assert servers.chat(FIRST).cached == first.length

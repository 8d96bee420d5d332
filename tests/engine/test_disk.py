"""The disk beside the engine: reading from it holds up nobody, and is done on its own threads."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event as Flag

import pytest

from flm.core.event import Finished, FinishReason
from flm.engine import thread as engine_thread
from flm.engine.thread import EngineThread
from flm.memory.layout import MemoryLayout
from flm.prefix.disk.store import DiskStore
from flm.prefix.disk.stored import Loaded, Stored, Unwritten
from flm.prefix.disk.tier import DiskTier
from tests.engine.rig import (
    CONVERSATION,
    STATEFUL,
    VOCABULARY,
    Rig,
    layouts,
    prompt_of,
    request_of,
    some_tokens,
)
from tests.engine.test_thread import PATIENCE_S, Client, ask
from tests.pure.disk import MIB, identity
from tests.pure.toy_disk import ToldTier

OTHER = prompt_of(some_tokens(7, 30), some_tokens(8, 9))
KEPT = len(CONVERSATION.tokens)


class SpyStore(DiskStore):
    """Notes on which thread it reads and writes, and is held up while `open` is not set."""

    def __init__(self, *parts: object, **how: object) -> None:
        super().__init__(*parts, **how)  # type: ignore[arg-type]
        self.threads: list[str] = []
        self.open, self.reached, self.written = Flag(), Flag(), Flag()
        self.open.set()

    def read(self, stored: Stored, start: int) -> Loaded:
        self.threads.append(threading.current_thread().name)
        self.reached.set()
        assert self.open.wait(PATIENCE_S)
        return super().read(stored, start)

    def write(self, item: Unwritten, pace: Callable[[int], None] = lambda count: None) -> int:
        self.threads.append(threading.current_thread().name)
        size = super().write(item, pace)
        self.written.set()
        return size


def store_for(folder: Path, layout: MemoryLayout, *, bytes_max: int = 4 * MIB) -> SpyStore:
    return SpyStore(
        folder / "disk",
        identity(layout),
        layout,
        bytes_max=bytes_max,
        free_min_bytes=0,
        warn=lambda line: None,
        window=8,
    )


def told(folder: Path, layout: MemoryLayout) -> tuple[Rig, ToldTier]:
    tier = ToldTier(store_for(folder, layout))
    return Rig(folder, layout=layout, disk=tier), tier


def filled(folder: Path, layout: MemoryLayout) -> list[int]:
    """A disk that has the conversation; what was said to it."""
    rig, _ = told(folder, layout)
    rig.run(request_of("cold", CONVERSATION))
    rig.cache.close(PATIENCE_S)
    return rig.tokens("cold")


@layouts
def test_who_waits_for_the_disk_holds_up_nobody(tmp_path, layout) -> None:
    said = filled(tmp_path, layout)
    rig, tier = told(tmp_path, layout)
    rig.engine.submit(request_of("kept", CONVERSATION))
    rig.run(request_of("other", OTHER))
    assert rig.finished("other").usage.cached_tokens == 0
    assert rig.of("kept") == []
    assert (rig.engine.busy, rig.engine.waiting, rig.engine.running) == (False, 1, 0)
    tier.reads.run_all()
    rig.run()
    usage = rig.finished("kept").usage
    assert (usage.cached_tokens, usage.tier, usage.kind) == (KEPT, "disk", "end")
    assert rig.tokens("kept") == said
    assert rig.cache.bytes_coming == 0
    tier.close()


@layouts
def test_a_retry_waits_for_the_same_fetch(tmp_path, layout) -> None:
    said = filled(tmp_path, layout)
    rig, tier = told(tmp_path, layout)
    for name in "abc":
        rig.engine.submit(request_of(name, CONVERSATION))
    rig.engine.cancel("a")
    rig.run()
    assert rig.engine.waiting == 2
    assert len(tier.reads.jobs) == 1
    tier.reads.run_all()
    rig.run()
    assert rig.finished("a").reason is FinishReason.CANCELLED
    assert [rig.tokens(name) for name in "bc"] == [said, said]
    assert [rig.finished(name).usage.cached_tokens for name in "bc"] == [KEPT, KEPT]
    tier.close()


@layouts
@pytest.mark.parametrize("landed", [False, True])
def test_a_cancel_leaves_no_fetch_behind(tmp_path, layout, landed) -> None:
    filled(tmp_path, layout)
    rig, tier = told(tmp_path, layout)
    rig.engine.submit(request_of("a", CONVERSATION))
    if landed:
        tier.reads.run_all()
    rig.engine.cancel("a")
    rig.run()
    tier.reads.run_all()
    rig.step()
    assert rig.finished("a").reason is FinishReason.CANCELLED
    assert (rig.cache.fetches, rig.cache.bytes_coming, rig.engine.waiting) == ([], 0, 0)
    tier.close()


@layouts
def test_a_broken_entry_costs_its_request_only_time(tmp_path, layout) -> None:
    said = filled(tmp_path, layout)
    rig, tier = told(tmp_path, layout)
    for path in (tmp_path / "disk").rglob("*.rows"):
        torn = bytearray(path.read_bytes())
        torn[-1] ^= 1
        path.write_bytes(torn)
    rig.engine.submit(request_of("a", CONVERSATION))
    tier.reads.run_all()
    rig.run()
    assert rig.finished("a").usage.cached_tokens < KEPT
    assert rig.tokens("a") == said
    tier.close()


def test_a_request_without_reuse_waits_for_no_disk(tmp_path) -> None:
    filled(tmp_path, STATEFUL)
    rig, tier = told(tmp_path, STATEFUL)
    rig.run(replace(request_of("a", CONVERSATION), reuse=False))
    assert rig.finished("a").usage.cached_tokens == 0
    assert not tier.reads.jobs
    tier.close()


@pytest.fixture
def store(tmp_path) -> SpyStore:
    filled(tmp_path, STATEFUL)
    return store_for(tmp_path, STATEFUL)


@pytest.fixture
def rig(tmp_path, store) -> Rig:
    return Rig(tmp_path, layout=STATEFUL, disk=DiskTier(store))


def test_the_thread_sleeps_while_all_wait_for_the_disk_and_wakes_when_it_has_come(
    rig, store, monkeypatch
) -> None:
    steps = []
    step = rig.engine.step
    monkeypatch.setattr(rig.engine, "step", lambda: steps.append(1) or step())
    store.open.clear()
    thread = EngineThread(rig.engine)
    client = ask(thread, "a", CONVERSATION)
    assert store.reached.wait(PATIENCE_S)
    thread.ask(lambda engine: None).result(PATIENCE_S)
    before = len(steps)
    for _ in range(3):
        assert thread.ask(lambda engine: engine.busy).result(PATIENCE_S) is False
    assert len(steps) <= before + 4, "a step for each that asked, and no more"
    assert not client.events
    store.open.set()
    ending = client.ending()
    assert isinstance(ending, Finished)
    assert ending.usage.cached_tokens == KEPT
    thread.close()


def test_nothing_but_its_own_threads_reads_or_writes(rig, store) -> None:
    rig.cache.bytes_max = 2 * (KEPT * STATEFUL.row_bytes + 4 * VOCABULARY)  # so that it fills
    thread = EngineThread(rig.engine)
    clients = [ask(thread, "kept", CONVERSATION)]
    clients += [ask(thread, f"r{n}", some_tokens(n, 30), max_tokens=2) for n in range(3)]
    assert all(isinstance(client.ending(), Finished) for client in clients)
    thread.close()
    assert {name.rpartition("_")[0] for name in store.threads} == {
        "flm-disk-read",
        "flm-disk-write",
    }


def test_a_quiet_moment_makes_what_is_kept_safe(rig, store, monkeypatch) -> None:
    monkeypatch.setattr(engine_thread, "QUIET_S", 0.01)
    thread = EngineThread(rig.engine)
    assert ask(thread, "other", OTHER).ending()
    assert store.written.wait(PATIENCE_S)
    thread.close()


def test_closing_writes_what_is_kept(rig, store, tmp_path) -> None:
    thread = EngineThread(rig.engine)
    assert ask(thread, "other", OTHER).ending()
    thread.close()
    again = store_for(tmp_path, STATEFUL)
    assert again.find("", OTHER.packed) is not None
    again.check()
    again.close()


def test_closing_takes_no_longer_than_it_may(rig, store, monkeypatch) -> None:
    monkeypatch.setattr(engine_thread, "FLUSH_S_MAX", 0.05)
    write = store.write

    def endless(item: Unwritten, pace: Callable[[int], None]) -> int:
        def never(count: int) -> None:
            while True:
                pace(count)

        return write(item, never)

    monkeypatch.setattr(store, "write", endless)
    thread = EngineThread(rig.engine)
    assert ask(thread, "other", OTHER).ending()
    thread.close()
    assert not thread._thread.is_alive()


def test_closing_while_a_request_waits_for_the_disk_ends_it(rig, store) -> None:
    store.open.clear()
    thread = EngineThread(rig.engine)
    client: Client = ask(thread, "a", CONVERSATION)
    assert store.reached.wait(PATIENCE_S)
    thread.cancel("a")
    ending = client.ending()
    assert isinstance(ending, Finished)
    assert ending.reason is FinishReason.CANCELLED
    store.open.set()
    thread.close()
    rig.engine.check()
    assert rig.cache.bytes_coming == 0

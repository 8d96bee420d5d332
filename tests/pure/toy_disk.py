"""The toy model's server with a disk, whose reads and writes are done when a test says so."""

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from flm.core.finding import Fate
from flm.core.prompt import Prompt
from flm.core.tensor import MemoryKind
from flm.memory.layout import MemoryTensor
from flm.memory.snapshot import Snapshot
from flm.prefix.cache import PrefixCache
from flm.prefix.disk.store import DiskStore
from flm.prefix.disk.tier import DiskTier
from flm.prefix.eviction import Policy, flm
from flm.prefix.fetch import Fetch
from flm.prefix.trie import Node
from tests.pure.disk import MIB, QUICK, WINDOW, ToyLayout, identity, packed
from tests.pure.toy import ROW_BYTES, STATE_BYTES, Log, begin, cold, prompt

ROWS = (
    MemoryTensor("keys", MemoryKind.ROWS, (1, 1), "int32"),
    MemoryTensor("values", MemoryKind.ROWS, (2, 3), "int16"),
)
STATE = MemoryTensor("chain", MemoryKind.STATE, (STATE_BYTES,), "uint8")
LAYOUTS = {True: ToyLayout((*ROWS, STATE)), False: ToyLayout(ROWS)}
__all__ = ["QUICK", "Told", "ToldTier", "ToyDisk", "packed"]


class Told(Executor):
    """Works when told, in any order."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self.jobs.append((future, partial(work, *args, **named)))
        return future

    def run(self, index: int = 0) -> None:
        future, work = self.jobs.pop(index)
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

    def run_all(self) -> None:
        while self.jobs:
            self.run()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for future, _ in self.jobs if cancel_futures else ():
            future.cancel()
        self.run_all()


class ToldTier(DiskTier):
    """The real one, but for its threads."""

    def __init__(self, store: DiskStore) -> None:
        super().__init__(store, write_bytes_per_s_max=None)
        self.reads, self.writes = Told(), Told()
        self._reader, self._writer = self.reads, self.writes  # type: ignore[assignment]


class ToyDisk:
    """A folder, and one cache after another that keeps there."""

    tier: ToldTier
    cache: PrefixCache

    def __init__(
        self,
        root: Path,
        *,
        hybrid: bool,
        bytes_max: int = MIB,
        slots_max: int | None = None,
        gain_min: int = 1,
        disk_bytes_max: int = 4 * MIB,
        policy: Policy = flm,
        transit: bool = False,
    ) -> None:
        self.root, self.hybrid, self.disk_bytes_max = root, hybrid, disk_bytes_max
        self.log = Log()
        self.ticks, self.later_s = count(1), 0.0
        self.how = {
            "bytes_max": bytes_max,
            "slots_max": slots_max,
            "gain_min": gain_min,
            "policy": policy,
            "transit": transit,
        }
        self.open()

    @property
    def store(self) -> DiskStore:
        return self.tier.store

    @property
    def folder(self) -> Path:
        return self.root / identity(LAYOUTS[self.hybrid]).digest

    def open(self) -> None:
        layout = LAYOUTS[self.hybrid]
        store = DiskStore(
            self.root,
            identity(layout),
            layout,
            bytes_max=self.disk_bytes_max,
            free_min_bytes=0,
            warn=self.log.warnings.append,
            clock=lambda: float(next(self.ticks)),
            window=WINDOW,
        )
        self.tier = ToldTier(store)
        self.cache = PrefixCache(
            row_bytes=ROW_BYTES,
            state_bytes=STATE_BYTES if self.hybrid else 0,
            log=self.log.lines.append,
            warn=self.log.warnings.append,
            ghosts_max=MIB,
            disk=self.tier,
            clock=lambda: self.later_s + next(self.ticks),
            **self.how,  # type: ignore[arg-type]
        )

    def restart(self) -> None:
        self.cache.close(60.0)
        self.open()
        self.check()

    def kill(self) -> None:
        """What lies there at this instant is all that the next one has."""
        copy = self.root.with_name(f"{self.root.name}+")
        shutil.copytree(self.root, copy)
        self.tier.close(finish=False)
        self.root = copy
        self.open()
        self.check()

    def check(self) -> None:
        self.cache.check()
        self.store.check()

    def spill(self, *, all_of_it: bool = True) -> int:
        """Until there is no more to write; how many snapshots."""
        written = 0
        while self.cache.spill(all_of_it=all_of_it):
            self.tier.writes.run_all()
            written += 1
        self.check()
        return written

    def begin_fetch(self, tokens: Sequence[int], domain: str = "") -> Fetch | None:
        asked = replace(prompt(tokens, end=len(tokens)), domain=domain)
        fetch = self.cache.fetch(asked, None)
        self.cache.check()
        return fetch

    def ask(self, tokens: Sequence[int], *, domain: str = "", **offsets: int) -> int:
        """A whole request, as the engine serves it: what the disk has is read before.

        Gives the number of tokens that were not read. Warm equals cold, or it fails.
        """
        request = replace(prompt(tokens, **(offsets or {"end": len(tokens)})), domain=domain)
        if fetch := self.cache.fetch(request, None):
            self.cache.check()
            self.tier.reads.run_all()
            fetch.land()
            self.cache.check()
            fetch.close()
        return self.serve(request)

    def serve(self, request: Prompt) -> int:
        """From memory alone."""
        cache, tokens = self.cache, request.tokens
        lease, toy = begin(cache, request)
        answer = lease.logits

        def save(start: int, end: int) -> Snapshot:
            coming = (end - start) * ROW_BYTES + cache.state_bytes
            assert cache.bytes_kept + cache.bytes_coming + coming <= cache.bytes_max
            return toy.save(start, end)

        for boundary in request.boundaries:
            if lease.wants(boundary):
                toy.read(tokens[toy.length : boundary.offset])
                logits = toy.logits() if boundary.offset == len(tokens) else None
                lease.keep(boundary, save, logits)
                cache.check()
        if answer is None:
            assert lease.offset < len(tokens)
            toy.read(tokens[toy.length :])
            answer = toy.logits()
        assert answer.tobytes() == cold(tokens, hybrid=self.hybrid)
        lease.close()
        self.check()
        return lease.offset

    def nodes(self, domain: str = "") -> dict[int, Node]:
        """Kept in memory: by offset."""
        root = self.cache.trie.roots.get(domain)
        return {node.end: node for node in root.below() if node.slot} if root else {}

    def on_disk(self, domain: str = "") -> list[int]:
        """Offsets of the snapshots there."""
        return sorted(one.offset for one in self.store.overview() if one.domain == domain)

    def fates(self, tokens: Sequence[int]) -> tuple[Fate, ...]:
        return self.cache.ghosts.find(prompt([*tokens, 1], end=len(tokens) + 1)).fates

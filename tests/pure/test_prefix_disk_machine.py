"""The prefix cache's traffic with a disk: reads and writes land in any order, files break, the
process ends well or badly, and still warm equals cold.

Walks from fixed seeds, not a hypothesis machine: what matters here takes a prompt that was kept,
written, given up and asked for again, and random rules hardly ever come to that.
"""

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.prefix.disk.stored import Stored
from flm.prefix.eviction import POLICIES
from flm.prefix.fetch import Fetch
from flm.prefix.ranks import ORDER
from flm.prefix.spill import pass_on
from tests.pure.test_prefix_machine import CalledSlowly, Running, Traffic
from tests.pure.toy import ROW_BYTES, snapshot_bytes
from tests.pure.toy_disk import QUICK, ToyDisk, packed

SEEDS = (*range(6), 11, 23, 48, 90)  # the last have found bugs
MOVES = 150
MOVE_WEIGHTS = {
    "serve": 6, "admit": 2, "read_on": 4, "finish": 3, "press": 2, "forget": 2, "ask": 8,
    "admit_waiting": 4, "leave": 1, "spill": 3, "land": 6, "end": 1, "clear": 0.3, "damage": 0.5,
}  # fmt: skip


@dataclass(eq=False)
class Waiter:
    prompt: Prompt
    fetch: Fetch
    stored: Stored  # what it was promised


class Walk(Traffic):
    """`made` counts what happened, so that a test can ask whether enough did."""

    def __init__(self, root: Path, seed: int, *, hybrid: bool, made: Counter[str]) -> None:
        super().__init__()
        self.random, self.made, self.hybrid = Random(seed), made, hybrid
        choose = self.random.choice
        self.disk = ToyDisk(
            root,
            hybrid=hybrid,
            bytes_max=snapshot_bytes(choose([12, 16, 24, 48, 60_000]), hybrid=hybrid),
            slots_max=choose([None, None, 2, 4]),
            gain_min=choose([1, 1, 3]),
            disk_bytes_max=choose([70_000, 75_000, 4_000_000]),
            policy=POLICIES[choose(sorted(POLICIES))],
            transit=choose([False, False, True]),
        )
        self.cache, self.log = self.disk.cache, self.disk.log
        self.history = [(70_000, 1, 2)]
        self.called, self.now = CalledSlowly(), 0.0
        self.active: list[Running] = []
        self.waiters: list[Waiter] = []
        self.damaged = self.cleared = False

    def go(self) -> None:
        names, weights = list(MOVE_WEIGHTS), list(MOVE_WEIGHTS.values())
        for name in self.random.choices(names, weights, k=MOVES):
            getattr(self, name)()
            self.disk.check()
        self.end()
        assert (self.cache.bytes_coming, self.cache.bytes_kept) == (0, 0)
        self.disk.tier.close()

    def some_prompt(self) -> Prompt:
        """One that begins like another, mostly."""
        random = self.random
        base = random.choice(self.history[-8:])
        tokens = base[: random.randint(0, len(base))]
        tokens += tuple(random.choices((0, 1), k=random.randint(not tokens, 8)))
        kinds = {random.randint(1, len(tokens)): random.choice(ORDER) for _ in range(3)}
        kinds[len(tokens)] = BoundaryKind.END
        return Prompt(tokens, tuple(Boundary(at, kinds[at]) for at in sorted(kinds)))

    def serve(self) -> None:
        """A whole request, and then a quiet moment, or none."""
        running = self.admitted(self.some_prompt())
        for _ in running.prompt.boundaries:
            self.advance(running, fails=0)
        running.lease.close()
        if self.random.random() < 0.7:
            self.disk.spill()

    def admit(self) -> None:
        if len(self.active) < 3:
            self.active.append(self.admitted(self.some_prompt()))

    def read_on(self) -> None:
        if self.active:
            self.advance(self.random.choice(self.active), fails=self.random.randint(0, 5))
            self.made["split or kept while fetched"] += bool(self.waiters)

    def finish(self) -> None:
        if self.active:
            self.active.pop(self.random.randrange(len(self.active))).lease.close()

    def press(self) -> None:
        """Another conversation takes all the room that it can get."""
        length = min(60, (self.cache.bytes_max - snapshot_bytes(0)) // ROW_BYTES)
        tokens = (self.random.randint(80_000, 90_000), *range(length - 1))
        self.disk.serve(Prompt(tokens, (Boundary(length, BoundaryKind.END),)))

    def forget(self) -> None:
        """Memory lets go of what the disk has."""
        pass_on(self.cache)

    def ask(self) -> None:
        """For what the disk has more of than memory, and mostly more."""
        more = tuple(self.random.choices((0, 1), k=self.random.choice([0, 1, 1, 3])))
        stored = {}
        for each in self.history[-12:]:
            if more or each:
                stored[each + more] = self.disk.store.find("", packed(each + more))
        lost = [each for each, s in stored.items() if s and s.offset > self.longest_kept(each)]
        if not lost:
            return
        tokens = self.random.choice(lost)
        request = Prompt(tokens, (Boundary(len(tokens), BoundaryKind.END),))
        fetch, promised = self.cache.fetch(request, None), stored[tokens]
        self.history.append(tokens)
        if fetch and promised:
            self.made["shared" if fetch.users > 1 else "fetched"] += 1
            self.waiters.append(Waiter(request, fetch, promised))

    def admit_waiting(self) -> None:
        """What came is kept, and not a token less than was promised is reused."""
        if not self.waiters:
            return
        waiter = self.waiters.pop(self.random.randrange(len(self.waiters)))
        if not waiter.fetch.done:
            self.disk.tier.reads.run_all()
        first = waiter.fetch.bytes_reserved > 0
        landed = waiter.fetch.land()
        self.made["landed" if landed else "did not land"] += 1
        assert landed or self.damaged or self.cleared or self.log.having("no room")
        self.cache.check()
        self.active.append(self.admitted(waiter.prompt))
        offset = self.active[-1].lease.offset
        assert offset >= waiter.stored.offset or not (landed and first)
        waiter.fetch.close()

    def leave(self) -> None:
        if self.waiters:
            self.waiters.pop().fetch.close()

    def spill(self) -> None:
        self.cache.spill(all_of_it=self.random.random() < 0.5)

    def land(self) -> None:
        """One read or write, whichever."""
        for queue in (self.disk.tier.reads, self.disk.tier.writes):
            if queue.jobs:
                queue.run(self.random.randrange(len(queue.jobs)))

    def end(self) -> None:
        """Of the process; the next one finds what was written."""
        for fetch in [waiter.fetch for waiter in self.waiters]:
            fetch.close()
        for lease in list(self.cache.leases):
            lease.close()
        self.waiters, self.active = [], []
        before, well = set(self.disk.on_disk()), self.random.random() < 0.5
        if well:
            self.disk.restart()
        else:
            self.disk.kill()
            assert self.damaged or before == set(self.disk.on_disk())
        self.cache = self.disk.cache

    def clear(self) -> None:
        self.cleared = True
        self.cache.clear()
        self.cache.clear_disk()
        assert self.disk.on_disk() == []

    def damage(self) -> None:
        paths = sorted(p for p in self.disk.folder.iterdir() if p.suffix in (".rows", ".state"))
        if paths:
            self.damaged = True
            path = self.random.choice(paths)
            torn = bytearray(path.read_bytes())
            torn[self.random.randrange(len(torn))] ^= 1
            path.write_bytes(torn)


@pytest.mark.parametrize("hybrid", [True, False], ids=["hybrid", "stateless"])
def test_warm_equals_cold_whatever_the_disk_does(hybrid: bool) -> None:
    made: Counter[str] = Counter()
    for seed in SEEDS:
        home = Path(tempfile.mkdtemp(dir=QUICK))
        try:
            Walk(home / "disk", seed, hybrid=hybrid, made=made).go()
        except BaseException as error:
            error.add_note(f"on walk {seed}")
            raise
        finally:
            shutil.rmtree(home)
    assert made["landed"] > len(SEEDS), made
    assert made["shared"] > len(SEEDS), made

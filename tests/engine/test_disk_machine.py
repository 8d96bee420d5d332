"""The engine's machine with so little memory that all goes to the disk and comes back from it."""

import shutil
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from flm.core.request import Priority
from flm.memory.layout import MemoryLayout
from flm.prefix.spill import pass_on
from tests.engine.rig import VOCABULARY, Rig
from tests.engine.test_disk import store_for
from tests.engine.test_machine import (
    LAYOUTS,
    SAMPLINGS,
    EngineMachine,
    paths,
    request_for,
    samplings,
)
from tests.pure.toy_disk import QUICK, ToldTier


class DiskMachine(EngineMachine):
    runs = 0
    fetched = 0  # in all runs

    @initialize(
        layout=st.sampled_from(sorted(LAYOUTS)),
        lanes=st.integers(1, 3),
        chunk_len_max=st.sampled_from([2, 7, 64]),
        rows=st.sampled_from([40, 100, 200]),
        slots_max=st.sampled_from([None, 2]),
        gain_min=st.sampled_from([1, 8]),
        before=st.lists(paths, min_size=1, max_size=3),
    )
    def start(self, layout, lanes, chunk_len_max, rows, slots_max, gain_min, before) -> None:
        """The disk has what was asked for `before`."""
        memory: MemoryLayout = LAYOUTS[layout]
        DiskMachine.runs += 1
        super().start(layout, lanes, chunk_len_max, rows, slots_max, gain_min, (0, 0))
        self.home = self.folder / str(self.runs)
        self.tier = ToldTier(store_for(self.home, memory))
        self.tier.read_fixed_s = 0.0
        self.rig = Rig(
            self.folder,
            layout=memory,
            lanes=lanes,
            queue_max=4,
            chunk_len_max=chunk_len_max,
            cache_bytes=rows * memory.row_bytes + 3 * memory.state_bytes + 8 * VOCABULARY,
            slots_max=slots_max,
            gain_min=gain_min,
            during=self.during,
            disk=self.tier,
            parked_rows=50,
            parked_disk_rows=50,
            ghosts_bytes=2**20,
        )
        for path in before:
            self.serve(path, SAMPLINGS[0], 1)

    @rule(path=paths, sampling=samplings, max_tokens=st.integers(1, 3))
    def serve(self, path, sampling, max_tokens) -> None:
        """A whole request, and a quiet moment."""
        self.submit(path, sampling, max_tokens, True, Priority.INTERACTIVE, "")
        self.finish()
        self.write(4)
        self.forget()

    def finish(self) -> None:
        """All that was asked for."""
        while self.rig.engine.busy or self.rig.engine.waiting:
            self.rig.until(lambda: not self.rig.engine.busy, steps_max=2000)
            assert self.tier.reads.jobs or not self.rig.engine.waiting, "waits for nothing"
            self.tier.reads.run_all()

    @rule()
    def forget(self) -> None:
        """Memory lets go of what the disk has."""
        pass_on(self.rig.cache)

    def on_disk(self) -> list[tuple[int, ...]]:
        """What was asked for and the disk has more of than memory."""
        if not hasattr(self, "rig"):
            return []
        asked = {
            path: request_for("", (path, SAMPLINGS[0], 1)).prompt
            for path, *_ in self.asked.values()
        }
        return sorted(
            p for p, prompt in asked.items() if self.rig.cache.look(prompt).tier == "disk"
        )

    @precondition(lambda self: self.on_disk())
    @rule(data=st.data(), sampling=samplings, more=st.sampled_from([(), (2,), (3, 1)]))
    def come_back(self, data: Any, sampling, more) -> None:
        path = data.draw(st.sampled_from(self.on_disk())) + more
        self.submit(path, sampling, 3, True, Priority.INTERACTIVE, "")

    @rule()
    def read(self) -> None:
        if self.tier.reads.jobs:
            self.tier.reads.run()

    @rule(count=st.integers(1, 4))
    def write(self, count: int) -> None:
        """As in a quiet moment."""
        for _ in range(count):
            self.rig.cache.spill(all_of_it=True)
        self.tier.writes.run_all()

    @rule(data=st.data())
    def damage(self, data: Any) -> None:
        paths = sorted(self.home.rglob("*.rows"))
        if paths and not self.tier.reads.jobs:
            path = data.draw(st.sampled_from(paths))
            torn = bytearray(path.read_bytes())
            torn[data.draw(st.integers(0, len(torn) - 1))] ^= 1
            path.write_bytes(torn)

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.failing = False
        self.finish()
        assert not self.rig.cache.leases
        assert not self.rig.cache.fetches
        for name, asked in self.asked.items():
            self.ended_rightly(name, asked)
        assert all(self.rig.ending(f"idle{number}") for number in range(self.idle))
        DiskMachine.fetched += self.tier.counters.reads
        self.rig.cache.close(60)
        shutil.rmtree(self.home)


def test_warm_equals_cold_with_a_disk_and_every_request_ends(tmp_path) -> None:
    DiskMachine.folder = (QUICK or tmp_path) / tmp_path.name if QUICK else tmp_path
    DiskMachine.folder.mkdir(exist_ok=True)
    try:
        run_state_machine_as_test(
            DiskMachine,
            settings=settings(
                max_examples=40,
                stateful_step_count=30,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        shutil.rmtree(DiskMachine.folder, ignore_errors=True)
    assert DiskMachine.fetched >= DiskMachine.runs  # one a run, on average

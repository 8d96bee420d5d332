"""Any order of submit, cancel, fail and step: warm equals cold, every request ends, and of a prompt
as much is known to have been read as was.

Prompts are paths in a small tree of segments, so that many begin alike. The reference is a cold
engine of one lane that reads each prompt whole: other chunks, no company, no cache.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from flm.core.event import Failed, Finished, FinishReason
from flm.core.request import Priority, Request, SamplingParams
from flm.errors import DeviceFailed, DeviceLost, QueueFull
from flm.memory.layout import MemoryLayout
from flm.prefix.tally import AHEAD
from tests.engine.rig import STATEFUL, STATELESS, Rig, prompt_of, request_of, some_tokens

SEGMENTS = [some_tokens(seed, length) for seed, length in enumerate((1, 2, 5, 13, 30))]
SAMPLINGS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=1.2, seed=4),
    SamplingParams(temperature=0.8, top_p=0.9, seed=5, presence_penalty=0.5),
]
OUTCOMES = ("read", "used", "wasted")
LAYOUTS = {"rows": STATELESS, "state": STATEFUL}

paths = st.lists(st.integers(0, len(SEGMENTS) - 1), min_size=1, max_size=4).map(tuple)
samplings = st.sampled_from(SAMPLINGS)
Asked = tuple[tuple[int, ...], SamplingParams, int]


def request_for(name: str, asked: Asked, *, ends: bool = True) -> Request:
    path, sampling, max_tokens = asked
    prompt = prompt_of(*(SEGMENTS[index] for index in path), ends=ends)
    return request_of(name, prompt, sampling=sampling, max_tokens=max_tokens)


@cache
def cold_tokens(folder: Path, layout: str, path: tuple[int, ...], seed: int) -> tuple[int, ...]:
    """More tokens than any request asks for."""
    sampling = next(s for s in SAMPLINGS if s.seed == seed)
    rig = Rig(folder, layout=LAYOUTS[layout], lanes=1, cache_bytes=0, chunk_len_max=256)
    rig.run(request_for("cold", (path, sampling, 6), ends=False))
    return tuple(rig.tokens("cold"))


class EngineMachine(RuleBasedStateMachine):
    folder: ClassVar[Path]

    @initialize(
        layout=st.sampled_from(sorted(LAYOUTS)),
        lanes=st.integers(1, 3),
        chunk_len_max=st.sampled_from([1, 2, 7, 64]),
        rows=st.sampled_from([0, 20, 60, 10_000]),
        slots_max=st.sampled_from([None, 1, 3]),
        gain_min=st.sampled_from([1, 8]),
        parked=st.sampled_from([(0, 0), (50, 0), (30, 80), (0, 10_000), (10_000, 0)]),
    )
    def start(self, layout, lanes, chunk_len_max, rows, slots_max, gain_min, parked) -> None:
        self.layout = layout
        memory: MemoryLayout = LAYOUTS[layout]
        self.failing = False
        self.asked: dict[str, Asked] = {}
        self.cancelled: set[str] = set()
        self.idle = 0  # prompts that nobody waits for
        self.broken = 0  # passes that were made to fail
        self.lost = 0  # times the device was told to end
        self.rig = Rig(
            self.folder,
            layout=memory,
            lanes=lanes,
            queue_max=4,
            chunk_len_max=chunk_len_max,
            cache_bytes=rows * memory.row_bytes + 3 * bool(rows) * memory.state_bytes,
            slots_max=slots_max,
            gain_min=gain_min,
            during=self.during,
            parked_rows=parked[0],
            parked_disk_rows=parked[1],
            ghosts_bytes=2**20,
        )

    def during(self) -> None:
        if self.failing:
            self.failing = False
            self.broken += 1
            raise DeviceFailed("told to", fix="none")

    @rule(
        path=paths,
        sampling=samplings,
        max_tokens=st.integers(1, 6),
        ends=st.booleans(),
        priority=st.sampled_from([Priority.INTERACTIVE, Priority.AGENT]),
        owner=st.sampled_from(["", "other"]),
    )
    def submit(self, path, sampling, max_tokens, ends, priority, owner) -> None:
        name, asked = f"r{len(self.asked)}", (path, sampling, max_tokens)
        room = self.rig.engine.room
        request = request_for(name, asked, ends=ends)
        try:
            self.rig.engine.submit(replace(request, priority=priority, owner=owner))
        except QueueFull:
            assert room == 0
        else:
            assert room > 0
            self.asked[name] = asked

    @rule(path=paths, other=paths, sampling=samplings, count=st.integers(1, 9))
    def come_upon_an_agent(self, path, other, sampling, count) -> None:
        """Both are asked for, the person a moment later."""
        self.submit(path, sampling, 6, True, Priority.AGENT, "")
        self.rig.step(count)
        self.submit(other, sampling, 2, True, Priority.INTERACTIVE, "other")

    @rule(path=paths)
    def read_ahead(self, path) -> None:
        name = f"idle{self.idle}"
        request = request_for(name, (path, SAMPLINGS[0], 1))
        self.rig.engine.submit(replace(request, max_tokens=0, priority=Priority.IDLE))
        self.idle += 1

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(self.asked)))
        self.rig.engine.cancel(name)
        self.cancelled.add(name)

    @rule()
    def fail_the_next_pass(self) -> None:
        self.failing = True

    @rule(uses=st.integers(0, 9))
    def lose_the_device(self, uses) -> None:
        self.rig.uses_left = uses
        self.lost += 1

    @rule(count=st.integers(1, 12))
    def step(self, count) -> None:
        self.rig.step(count)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "rig"):
            self.rig.engine.check()
            for path in {path for path, *_ in self.asked.values()}:
                prompt = prompt_of(*(SEGMENTS[index] for index in path))
                known = self.rig.cache.look(prompt)
                assert known.offset <= known.read <= known.seen
                assert known.read == self.rig.read_of(prompt)
                assert all(fate.offset <= known.read for fate in known.fates if fate.kind.reached)

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.failing, self.rig.uses_left = False, None
        tokens = sum(90 + max_tokens for _, _, max_tokens in self.asked.values())
        tokens += 90 * self.idle
        self.rig.until(lambda: not self.rig.engine.busy, steps_max=4 * tokens + 10)
        assert self.rig.lanes.free == len(self.rig.lanes)
        assert not self.rig.cache.leases
        assert (self.rig.parked.host_bytes, self.rig.parked.disk_bytes) == (0, 0)
        for name, asked in self.asked.items():
            self.ended_rightly(name, asked)
        assert all(self.rig.ending(f"idle{number}") for number in range(self.idle))
        kept = sum(node.slot.ahead for node in self.rig.cache.slots.values() if node.slot)
        ahead = {outcome: self.rig.cache.tally.of(AHEAD, outcome) for outcome in OUTCOMES}
        assert ahead["read"] == ahead["used"] + ahead["wasted"] + kept

    def ended_rightly(self, name: str, asked: Asked) -> None:
        path, sampling, max_tokens = asked
        cold = list(cold_tokens(self.folder, self.layout, path, sampling.seed))
        ending, found = self.rig.ending(name), self.rig.tokens(name)
        assert found == cold[: len(found)], "warm equals cold"
        if isinstance(ending, Failed) and isinstance(ending.error, DeviceLost):
            assert self.lost >= DeviceLost.losses_max
        elif isinstance(ending, Failed):
            assert self.broken
            assert isinstance(ending.error, DeviceFailed), ending.error
        elif ending.reason is FinishReason.CANCELLED:
            assert name in self.cancelled
        else:
            assert isinstance(ending, Finished)
            assert len(found) == max_tokens
            assert ending.usage.completion_tokens == max_tokens


def test_warm_equals_cold_and_every_request_ends(tmp_path) -> None:
    EngineMachine.folder = tmp_path
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            max_examples=150, stateful_step_count=30, deadline=None, derandomize=True
        ),
    )

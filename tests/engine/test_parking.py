"""A program's request gives its lane up to a person's, and goes on later as if nothing had been."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from flm.core.event import Admitted, Finished, FinishReason, Generated
from flm.core.request import Priority, Request, SamplingParams
from flm.core.sequence import Phase
from flm.engine.precedence import GRACE, PASSED_MAX
from flm.errors import DeviceFailed
from flm.memory.layout import MemoryLayout
from flm.prefix.tally import PARKED
from flm.runner.runner import Runner
from tests.engine.rig import STATEFUL, Rig, layouts, request_of, some_tokens

AGENT = Priority.AGENT
HOT = SamplingParams(temperature=1.0, seed=3, presence_penalty=0.4)
PROMPT, SHORT = some_tokens(1, 90), some_tokens(2, 12)
ROOMY = 10_000  # rows
places = pytest.mark.parametrize("disk", [False, True], ids=["host", "disk"])


def agent(name: str, prompt: Iterable[int] = PROMPT, **asked: Any) -> Request:
    asked = {"max_tokens": 12, "sampling": HOT, **asked}
    return request_of(name, tuple(prompt), priority=AGENT, **asked)


def room_for(rows: int, *, disk: bool) -> dict[str, int]:
    return {"parked_disk_rows": rows} if disk else {"parked_rows": rows}


def parked(rig: Rig) -> int:
    return int(rig.cache.tally.of(PARKED))


def passes_of(rig: Rig, name: str) -> int:
    return sum(isinstance(event, Generated) for event in rig.of(name))


def generated(rig: Rig, name: str, count: int) -> Callable[[], bool]:
    return lambda: passes_of(rig, name) >= count


def chunks_read(rig: Rig, count: int) -> Callable[[], bool]:
    return lambda: sum(step.prefill for step in rig.steps) >= count


@layouts
@places
@pytest.mark.parametrize("cache_bytes", [0, 2**20], ids=["nothing kept", "kept"])
@pytest.mark.parametrize(("chunks", "tokens"), [(1, 0), (3, 0), (0, 1), (0, 7)])
def test_who_was_parked_says_what_it_would_have_said(
    tmp_path, layout: MemoryLayout, disk: bool, cache_bytes: int, chunks: int, tokens: int
) -> None:
    alone = Rig(tmp_path, layout=layout, lanes=1, cache_bytes=cache_bytes)
    alone.run(agent("a"))
    rig = Rig(
        tmp_path, layout=layout, lanes=1, cache_bytes=cache_bytes, **room_for(ROOMY, disk=disk)
    )
    rig.engine.submit(agent("a"))
    rig.until(chunks_read(rig, chunks) if chunks else generated(rig, "a", tokens))
    rig.run(request_of("person", SHORT))
    assert parked(rig) == 1
    names = [e.request_id for e in rig.events if isinstance(e, Finished)]
    assert names == ["person", "a"]
    assert rig.tokens("a") == alone.tokens("a")
    assert rig.text("a") == alone.text("a")
    assert rig.finished("a").usage.cached_tokens == 0
    read = sum(len(s.spans[0].tokens) for s in rig.steps if s.prefill)
    assert read == len(PROMPT) + len(SHORT), "nothing is read twice"
    assert (rig.parked.host_bytes, rig.parked.disk_bytes) == (0, 0)


@layouts
def test_all_lanes_are_given_up_if_persons_want_them_and_all_come_back(tmp_path, layout) -> None:
    names = ["a", "b", "c"]
    prompts = {name: some_tokens(7 + each, 60) for each, name in enumerate(names)}
    alone = Rig(tmp_path, layout=layout, lanes=3)
    alone.run(*(agent(name, prompts[name]) for name in names))
    rig = Rig(tmp_path, layout=layout, lanes=3, parked_rows=60, parked_disk_rows=ROOMY)
    for name in names:
        rig.engine.submit(agent(name, prompts[name]))
    rig.until(lambda: all(passes_of(rig, name) >= 2 for name in names))
    rig.run(*(request_of(f"person {each}", some_tokens(20 + each, 30)) for each in range(3)))
    assert parked(rig) == 3
    for name in names:
        assert rig.tokens(name) == alone.tokens(name)


@layouts
def test_a_step_copies_one_window_at_the_most(tmp_path, layout, monkeypatch) -> None:
    copied: list[int] = []
    park, unpark = Runner.park, Runner.unpark

    def parking(self: Runner, lane: int, start: int, end: int):
        copied.append(end - start)
        return park(self, lane, start, end)

    def unparking(self: Runner, lane: int, tokens, snapshot, *, read: bool):
        copied.append(len(tokens))
        unpark(self, lane, tokens, snapshot, read=read)

    monkeypatch.setattr(Runner, "park", parking)
    monkeypatch.setattr(Runner, "unpark", unparking)
    rig = Rig(tmp_path, layout=layout, lanes=1, parked_rows=ROOMY, window_rows=8)
    rig.engine.submit(agent("a"))
    rig.until(generated(rig, "a", 5))
    rig.engine.submit(request_of("person", PROMPT[:50] + SHORT))
    while rig.engine.busy:
        before = len(copied)
        rig.step()
        assert len(copied) - before <= 1
    assert max(copied) == 8
    assert parked(rig) == 1


def test_others_go_on_writing_while_a_lane_is_given_up(tmp_path) -> None:
    rig = Rig(tmp_path, lanes=2, parked_rows=ROOMY, window_rows=2, cache_bytes=0)
    rig.engine.submit(request_of("writer", SHORT, max_tokens=200))
    rig.engine.submit(agent("a"))
    rig.until(generated(rig, "a", 2))
    before = passes_of(rig, "writer")
    rig.engine.submit(request_of("person", SHORT))
    rig.until(lambda: rig.of("person"))
    assert passes_of(rig, "writer") - before >= len(PROMPT) // 2


@pytest.mark.parametrize("lanes", [1, 4, 7])
@pytest.mark.parametrize("chunks", range(4, 12))
def test_agents_read_nothing_between_a_persons_arrival_and_its_first_chunk(
    tmp_path, lanes: int, chunks: int
) -> None:
    rig = Rig(tmp_path, lanes=lanes, parked_rows=ROOMY)
    for each in range(6):
        rig.engine.submit(agent(f"a{each}", some_tokens(40 + each, 200)))
    rig.until(chunks_read(rig, chunks))
    taken = len(rig.steps)
    rig.engine.submit(request_of("person", PROMPT))
    rig.until(generated(rig, "person", 1))
    own = next(active.lane for active in rig.engine._active.values() if active.id == "person")
    mine = [step.spans[0].lane == own for step in rig.steps[taken:] if step.prefill]
    assert mine[0]
    assert "ff" not in "".join("mf"[not each] for each in mine), "two chunks of others in a row"


def test_the_one_with_the_least_to_copy_leaves(tmp_path) -> None:
    rig = Rig(tmp_path, lanes=3, parked_rows=ROOMY, cache_bytes=0)
    rig.engine.submit(agent("long"))
    rig.engine.submit(agent("short", PROMPT[40:70]))
    rig.engine.submit(request_of("writer", SHORT, max_tokens=90))
    rig.until(lambda: passes_of(rig, "long") and passes_of(rig, "short"))
    rig.engine.submit(request_of("person", SHORT))
    rig.until(lambda: rig.of("person"))
    running = {active.id for active in rig.engine._active.values()}
    assert running == {"long", "writer", "person"}


def test_an_agent_takes_no_lane_from_anybody(tmp_path) -> None:
    rig = Rig(tmp_path, lanes=1, parked_rows=ROOMY)
    for first in (agent("first"), request_of("second", SHORT)):
        rig.engine.submit(first)
        rig.until(generated(rig, first.id, 1))
        rig.run(agent(f"after {first.id}", SHORT))
        assert parked(rig) == 0


@pytest.mark.parametrize("rows", [0, 30])
def test_without_room_the_newcomer_waits(tmp_path, rows: int) -> None:
    rig = Rig(tmp_path, lanes=1, parked_rows=rows, parked_disk_rows=rows, cache_bytes=0)
    rig.engine.submit(agent("a"))
    rig.until(generated(rig, "a", 2))
    rig.run(request_of("person", SHORT))
    assert [e.request_id for e in rig.events if isinstance(e, Finished)] == ["a", "person"]
    assert parked(rig) == 0


def test_what_is_kept_already_takes_no_room(tmp_path) -> None:
    rig = Rig(tmp_path, lanes=1, parked_rows=12)
    rig.engine.submit(agent("a"))
    rig.until(generated(rig, "a", 2))
    rig.run(request_of("person", SHORT))
    assert parked(rig) == 1


@places
def test_a_cancelled_one_frees_its_memory_at_once(tmp_path, disk: bool) -> None:
    rig = Rig(tmp_path, layout=STATEFUL, lanes=1, **room_for(ROOMY, disk=disk))
    rig.engine.submit(agent("a"))
    rig.until(generated(rig, "a", 3))
    rig.engine.submit(request_of("person", SHORT, max_tokens=9))
    rig.until(lambda: parked(rig))
    assert rig.parked.host_bytes + rig.parked.disk_bytes > 0
    rig.engine.cancel("a")
    assert (rig.parked.host_bytes, rig.parked.disk_bytes) == (0, 0)
    rig.run()
    assert rig.finished("a").reason is FinishReason.CANCELLED
    assert rig.finished("person").usage.completion_tokens == 9
    assert not rig.cache.leases


def test_who_is_no_longer_wanted_away_stays(tmp_path) -> None:
    rig = Rig(tmp_path, lanes=1, parked_rows=ROOMY, window_rows=1, cache_bytes=0)
    rig.engine.submit(agent("a"))
    rig.until(generated(rig, "a", 3))
    rig.engine.submit(request_of("person", SHORT))
    rig.step(5)
    assert rig.parked.host_bytes
    rig.engine.cancel("person")
    rig.step(2)
    assert not rig.parked.host_bytes
    rig.run()
    assert rig.finished("a").usage.completion_tokens == 12
    assert parked(rig) == 0


def test_a_disk_that_takes_nothing_costs_nobody_its_reply(tmp_path) -> None:
    alone = Rig(tmp_path, lanes=1)
    alone.run(agent("a"))
    (tmp_path / "parked").write_text("no folder")
    rig = Rig(tmp_path, lanes=1, parked_disk_rows=ROOMY)
    rig.engine.submit(agent("a"))
    rig.until(generated(rig, "a", 2))
    rig.run(request_of("person", SHORT))
    assert rig.tokens("a") == alone.tokens("a")
    assert rig.finished("person")
    assert sum("No room is left for parked lanes" in line for line in rig.log) == 1


@layouts
def test_what_the_disk_lost_is_read_again(tmp_path, layout, monkeypatch) -> None:
    rig = Rig(tmp_path, layout=layout, lanes=1, parked_disk_rows=ROOMY)
    rig.engine.submit(agent("a"))
    rig.until(generated(rig, "a", 4))
    rig.engine.submit(request_of("person", SHORT))
    rig.until(lambda: parked(rig))
    (away,) = rig.engine.parking._away.values()
    assert away.windows
    assert away.windows.file
    away.windows.file.truncate(0)
    rig.run()
    assert rig.finished("a").usage.completion_tokens == 12
    assert rig.finished("person")


@layouts
@pytest.mark.parametrize("verb", ["park", "unpark"])
def test_a_device_that_fails_meanwhile_costs_nobody_its_reply(
    tmp_path, layout, verb: str, monkeypatch
) -> None:
    def fail(*asked: object, **named: object) -> None:
        raise DeviceFailed("told to", fix="none")

    rig = Rig(tmp_path, layout=layout, lanes=1, parked_rows=ROOMY)
    rig.engine.submit(agent("a"))
    rig.until(generated(rig, "a", 4))
    rig.engine.submit(request_of("person", SHORT))
    with monkeypatch.context() as patch:
        patch.setattr(Runner, verb, fail)
        rig.until(lambda: not rig.engine.busy)
    assert rig.finished("a").usage.completion_tokens == 12
    assert rig.finished("person").usage.completion_tokens == 4
    assert rig.parked.host_bytes == 0


def test_programs_get_on_while_persons_never_cease_to_come(tmp_path) -> None:
    rig = Rig(tmp_path, lanes=1, parked_rows=ROOMY)
    rig.engine.submit(agent("a", max_tokens=40))
    count = 0
    while not any(isinstance(event, Finished) for event in rig.of("a")):
        if rig.engine.waiting < 2:
            count += 1
            rig.engine.submit(request_of(f"person {count}", some_tokens(count, 12)))
        rig.step()
    chunks, turns = len(PROMPT) // 16 + 1, 40 // GRACE + 1
    assert count <= (chunks + turns + 1) * (PASSED_MAX + 1) + 2


def test_what_an_agent_reads_for_a_person_is_read_as_for_a_person(tmp_path) -> None:
    """Both begin alike, and the agent reads that: another agent's shorter prompt has to wait."""
    rig = Rig(tmp_path, lanes=3, parked_rows=ROOMY)
    rig.engine.submit(agent("leader", PROMPT))
    rig.until(chunks_read(rig, 1))
    rig.engine.submit(agent("short", some_tokens(8, 60)))
    rig.engine.submit(request_of("person", PROMPT[:80] + SHORT))
    rig.until(lambda: rig.engine.running == 3)
    lanes = {active.id: active.lane for active in rig.engine._active.values()}
    taken = len(rig.steps)
    rig.until(generated(rig, "person", 1))
    chosen = [step.spans[0].lane for step in rig.steps[taken:] if step.prefill]
    assert chosen[:3] == [lanes["leader"]] * 3
    assert chosen.count(lanes["short"]) <= len(chosen) // 4


def test_events_of_a_parked_one_are_those_of_one_request(tmp_path) -> None:
    rig = Rig(tmp_path, lanes=1, parked_rows=ROOMY)
    rig.engine.submit(agent("a"))
    rig.until(generated(rig, "a", 2))
    rig.run(request_of("person", SHORT))
    kinds = [type(event) for event in rig.of("a")]
    assert kinds == [Admitted, *[Generated] * 12, Finished]
    assert all(active.sequence.phase is not Phase.WAITING for active in rig.engine.parking)

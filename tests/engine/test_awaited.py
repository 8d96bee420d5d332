"""A tool's time is from a reply's end to its result's arrival, and ours is not part of it."""

from pathlib import Path

from flm.memory.layout import MemoryLayout
from flm.prefix.tally import AWAITED
from tests.engine.rig import (
    CONVERSATION,
    Rig,
    layouts,
    prompt_of,
    request_of,
    some_tokens,
)

RESULTS = prompt_of((*CONVERSATION.tokens, *some_tokens(4, 9)))


def called(rig: Rig, name: str) -> None:
    rig.run(request_of(name, CONVERSATION))
    rig.cache.called(CONVERSATION, ["look"])


@layouts
def test_who_waits_for_a_lane_is_awaited_until_it_has_one(
    tmp_path: Path, layout: MemoryLayout
) -> None:
    rig = Rig(tmp_path, layout=layout, lanes=1)
    clock = rig.cache.clock = rig.runner.clock
    called(rig, "first")
    clock.now += 0.5
    rig.run(request_of("back", RESULTS))
    called(rig, "second")
    (number,) = rig.cache.awaited.slots(clock.now)
    left_s = rig.cache.awaited.left_s(number, clock.now)
    assert left_s == 0.5
    rig.engine.submit(request_of("another", some_tokens(8, 60), max_tokens=60))
    rig.step()
    clock.now += 0.25
    rig.engine.submit(request_of("waits", RESULTS))
    while rig.engine.waiting:
        assert number in rig.cache.awaited.slots(clock.now)
        rig.step()
    assert clock.now > 0.5, "for longer than the tool took"
    assert not rig.cache.awaited.slots(clock.now), "its lease holds it"
    rig.until(lambda: not rig.engine.busy)
    assert rig.cache.tally.of(AWAITED, "in_time") == 1
    called(rig, "third")
    assert rig.cache.awaited.left_s(number, clock.now) == 0.25, "without what it waited here"


@layouts
def test_without_reuse_nothing_is_learned(tmp_path: Path, layout: MemoryLayout) -> None:
    rig = Rig(tmp_path, layout=layout)
    called(rig, "first")
    request = request_of("back", RESULTS)
    rig.run(type(request)(request.id, request.prompt, request.sampling, 1, reuse=False))
    assert rig.cache.tally.of(AWAITED) == 0

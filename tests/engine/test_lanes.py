"""Lanes lend room, remember what they hold, and grow without losing it."""

import numpy as np
import pytest

from flm.core.step import Span, Step
from flm.devices.null import NullDevice
from flm.errors import NoRoom
from flm.memory.lanes import Lanes
from tests.engine.rig import STATEFUL, STATELESS, null_runner


def lanes_of(count: int = 2, **sizes: int) -> Lanes:
    return Lanes(NullDevice(), STATELESS, count=count, capacity_max=64, **sizes)


def read(lanes: Lanes, lane: int, tokens: list[int]) -> None:
    lanes.ensure(lanes[lane].rows + len(tokens))
    lanes.advance(lane, tokens, read=True)


def test_as_many_are_lent_as_there_are() -> None:
    lanes = lanes_of(2)
    assert {lanes.acquire([1]), lanes.acquire([1])} == {0, 1}
    assert lanes.acquire([1]) is None
    lanes.release(1)
    assert lanes.acquire([1]) == 1


def test_a_sequence_gets_the_lane_that_holds_most_of_its_start() -> None:
    lanes = lanes_of(3)
    for lane, tokens in enumerate([[1, 2], [1, 2, 3, 4], [9]]):
        assert lanes.acquire([lane]) == lane
        read(lanes, lane, tokens)
    for lane in (2, 1, 0):
        lanes.release(lane)
    assert lanes.acquire([1, 2, 3, 5]) == 1
    lanes.release(1)
    assert lanes.acquire([7]) == 2, "nothing in common: the longest unused"


def test_busy_lanes_stay_together_for_they_share_a_pass() -> None:
    lanes = lanes_of(4)
    for lane in range(4):
        assert lanes.acquire([1]) == lane
        read(lanes, lane, [lane] * 3)
    for lane in (3, 2, 1):
        lanes.release(lane)
    assert lanes.acquire([3, 3, 3]) == 1, "beside lane 0, though lane 3 holds this"
    lanes.release(0)
    lanes.release(1)
    assert lanes.acquire([3, 3, 3]) == 3, "alone it has the choice"


def test_decoded_rows_are_not_resident() -> None:
    lanes = lanes_of()
    lane = lanes.acquire([1])
    read(lanes, lane, [1, 2, 3])
    lanes.advance(lane, [4], read=False)
    assert (lanes[lane].rows, lanes[lane].resident) == (4, [1, 2, 3])
    lanes.advance(lane, [5], read=True)
    assert lanes[lane].resident == [1, 2, 3], "a read row behind a decoded one leans on it"
    lanes.rewind(lane, 2)
    assert (lanes[lane].rows, lanes[lane].resident) == (2, [1, 2])
    lanes.release(lane)
    lanes.check()


@pytest.mark.parametrize("layout", [STATELESS, STATEFUL], ids=["rows", "state"])
def test_growth_loses_nothing(tmp_path, layout) -> None:
    results = []
    for capacity_start in (8, 64):
        runner, lanes = null_runner(tmp_path, layout, lanes=3, capacity_start=capacity_start)
        while lanes.acquire(()) is not None:
            pass
        for lane, tokens in ((0, (5, 6, 7, 8)), (2, (9, 10, 11))):
            runner.run(Step((Span(lane, 0, tokens),), prefill=True))
        runner.run(Step((Span(0, 4, (1,)), Span(2, 3, (1,))), prefill=False))
        runner.run(Step((Span(1, 0, (3,) * 9),), prefill=True))
        lanes.check()
        assert lanes.capacity == max(16, capacity_start)
        results.append(runner.run(Step((Span(0, 5, (2,)), Span(2, 4, (2,))), prefill=False)))
    for lane in (0, 2):
        np.testing.assert_array_equal(results[0][lane], results[1][lane])


def test_capacity_doubles_up_to_its_limit_and_then_says_what_to_do() -> None:
    lanes = lanes_of(capacity_start=16)
    buffers = lanes.buffers(0, 2)
    lanes.ensure(16)
    assert lanes.buffers(0, 2) is buffers, "the same objects until growth"
    lanes.ensure(33)
    assert lanes.capacity == 64
    with pytest.raises(NoRoom, match="a lane holds 64") as caught:
        lanes.ensure(65)
    assert "--ctx-len" in caught.value.fix
    assert lanes.capacity == 64


def test_growth_that_memory_refuses_changes_nothing(monkeypatch) -> None:
    lanes = lanes_of(capacity_start=16)
    lane = lanes.acquire([1])
    read(lanes, lane, [1, 2, 3])
    buffers = dict(lanes.buffers(0, 2))

    def refuse(spec):
        raise MemoryError

    monkeypatch.setattr(lanes._device, "allocate", refuse)
    with pytest.raises(NoRoom, match="no memory for 32 rows"):
        lanes.ensure(17)
    assert lanes.capacity == 16
    assert lanes.buffers(0, 2) == buffers
    lanes.check()

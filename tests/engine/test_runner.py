"""The runner carries memory between lanes and host, and copies no more than it must."""

import numpy as np
import pytest

from flm.core.step import Span, Step
from flm.devices.device import IDS
from flm.devices.null import fingerprint
from flm.errors import DeviceFailed, PassCancelled
from flm.runner.batch import adjacent
from tests.engine.rig import KEYS, STATEFUL, STATELESS, VALUES, null_runner

TOKENS = tuple(np.random.default_rng(3).integers(0, 2048, 40).tolist())
both = pytest.mark.parametrize("layout", [STATELESS, STATEFUL], ids=["rows", "state"])


def read(runner, lane: int, tokens, start: int = 0):
    step = Step((Span(lane, start, tuple(tokens)),), prefill=True)
    return runner.run(step)[lane].copy()


def decode(runner, **tokens: tuple[int, int]):
    """lane -> (start, token)"""
    spans = [Span(int(lane[1:]), start, (token,)) for lane, (start, token) in tokens.items()]
    found = runner.run(Step(tuple(spans), prefill=False))
    return {lane: logits.copy() for lane, logits in found.items()}


@both
def test_restored_memory_goes_on_like_read_memory(tmp_path, layout) -> None:
    runner, lanes = null_runner(tmp_path, layout)
    read(runner, 0, TOKENS[:12])
    first = runner.save(0, 0, 12)
    read(runner, 0, TOKENS[12:20], start=12)
    second = runner.save(0, 12, 20)
    expected = read(runner, 0, TOKENS[20:30], start=20)
    read(runner, 1, TOKENS[5:25])  # something else was there
    runner.restore(1, TOKENS[:20], [first, second])
    np.testing.assert_array_equal(read(runner, 1, TOKENS[20:30], start=20), expected)
    lanes.check()


@both
def test_a_lane_restored_to_nothing_is_as_new(tmp_path, layout) -> None:
    runner, _ = null_runner(tmp_path, layout)
    expected = read(runner, 0, TOKENS[:7])
    read(runner, 1, TOKENS[20:40])
    runner.restore(1, (), ())
    np.testing.assert_array_equal(read(runner, 1, TOKENS[:7]), expected)


def test_a_snapshot_is_contiguous_and_its_own(tmp_path) -> None:
    runner, _ = null_runner(tmp_path, STATEFUL)
    read(runner, 0, TOKENS[:10])
    snapshot = runner.save(0, 4, 10)
    read(runner, 0, TOKENS[20:30])
    for index, tensor in enumerate((KEYS, VALUES)):
        rows = snapshot.rows[tensor.name]
        assert rows.flags.c_contiguous
        assert rows.shape == (2, 6, 4)
        assert rows.dtype == tensor.dtype
        expected = fingerprint(np.array(TOKENS[4:10]), 4, tensor=index, heads=2)
        np.testing.assert_array_equal(rows[:, :, 0], expected)
    held = sum(array.nbytes for array in [*snapshot.rows.values(), *snapshot.state.values()])
    assert held == 6 * STATEFUL.row_bytes + STATEFUL.state_bytes


def test_rows_that_a_lane_still_holds_are_not_copied_again(tmp_path) -> None:
    runner, lanes = null_runner(tmp_path, STATELESS)
    read(runner, 0, TOKENS[:20])
    snapshot = runner.save(0, 0, 20)
    decode(runner, l0=(20, 1))
    snapshot.rows[KEYS.name][:, :15] = 0  # so that a copy would show
    read(runner, 0, (7, 7, 7), start=15)
    runner.restore(0, TOKENS[:20], [snapshot])
    buffer = lanes.buffers(0, 1)[KEYS.name]
    buffer.to_host()
    expected = fingerprint(np.array(TOKENS[:20]), 0, tensor=0, heads=2)
    np.testing.assert_array_equal(buffer.array()[0, :, :20, 0], expected)
    assert lanes[0].resident == list(TOKENS[:20])


def test_decoded_rows_are_never_saved(tmp_path) -> None:
    runner, _ = null_runner(tmp_path, STATELESS)
    read(runner, 0, TOKENS[:8])
    decode(runner, l0=(8, 5))
    with pytest.raises(AssertionError, match="not all read by prefill"):
        runner.save(0, 0, 9)


def test_state_is_saved_only_where_it_stands(tmp_path) -> None:
    runner, _ = null_runner(tmp_path, STATEFUL)
    read(runner, 0, TOKENS[:8])
    with pytest.raises(AssertionError, match="state is that of 8"):
        runner.save(0, 0, 6)


@pytest.mark.parametrize("start", [0, 1, 2, 14])
def test_a_lone_token_reads_as_in_a_longer_chunk(tmp_path, start: int) -> None:
    runner, lanes = null_runner(tmp_path, STATELESS, capacity_start=4, capacity_max=16)
    expected = read(runner, 0, TOKENS[: start + 1])
    if start:
        read(runner, 1, TOKENS[:start])
    np.testing.assert_array_equal(read(runner, 1, TOKENS[start : start + 1], start=start), expected)
    assert lanes[1].rows == len(lanes[1].resident) == start + 1


@both
def test_what_counts_as_read_came_from_passes_of_several_rows(tmp_path, layout) -> None:
    runner, lanes = null_runner(tmp_path, layout)
    passes, run = [], runner._program.run
    runner._program.run = lambda buffers: (passes.append(buffers[IDS].spec.shape[1]), run(buffers))
    for length in (1, 2, 9):
        read(runner, 0, TOKENS[:length])
        assert lanes[0].resident == (list(TOKENS[:length]) if passes[-1] > 1 else [])
    assert passes == ([1, 2, 9] if layout.state else [2, 2, 9])


def test_a_prompt_of_one_token_into_a_state_is_answered_and_never_kept(tmp_path) -> None:
    runner, lanes = null_runner(tmp_path, STATEFUL)
    expected = read(runner, 1, TOKENS[:1])
    read(runner, 0, TOKENS[:5])
    runner.restore(0, (), ())
    np.testing.assert_array_equal(read(runner, 0, TOKENS[:1]), expected)
    assert (lanes[0].rows, lanes[0].resident) == (1, [])
    with pytest.raises(AssertionError, match="not all read by prefill"):
        runner.save(0, 0, 1)
    np.testing.assert_array_equal(decode(runner, l0=(1, 7))[0], decode(runner, l1=(1, 7))[1])


def test_a_lone_token_behind_others_never_meets_a_state(tmp_path) -> None:
    runner, lanes = null_runner(tmp_path, STATEFUL)
    read(runner, 0, TOKENS[:8])
    with pytest.raises(AssertionError, match="one row"):
        read(runner, 0, TOKENS[8:9], start=8)
    assert lanes[0].resident == list(TOKENS[:8])


def test_decoding_with_others_equals_decoding_alone(tmp_path) -> None:
    runner, _ = null_runner(tmp_path, STATEFUL, lanes=4)
    alone, _ = null_runner(tmp_path, STATEFUL, lanes=4)
    for each in (runner, alone):
        for lane in range(4):
            read(each, lane, TOKENS[lane : lane + 5 + lane])
    together = decode(runner, l0=(5, 1), l1=(6, 2), l3=(8, 3))
    for lane, (start, token) in {0: (5, 1), 1: (6, 2), 3: (8, 3)}.items():
        one = decode(alone, **{f"l{lane}": (start, token)})
        np.testing.assert_array_equal(together[lane], one[lane])


def test_a_pass_runs_over_adjacent_lanes() -> None:
    spans = [Span(lane, 0, (1,)) for lane in (0, 1, 3, 5, 6)]
    assert [[span.lane for span in run] for run in adjacent(spans)] == [[0, 1], [3], [5, 6]]


def test_cancel_ends_its_own_step_and_no_other(tmp_path) -> None:
    first = Step((Span(0, 0, TOKENS[:8]),), prefill=True)
    second = Step((Span(1, 0, TOKENS[:8]),), prefill=True)
    runner, lanes = null_runner(tmp_path, STATELESS, during=lambda: runner.cancel(first))
    with pytest.raises(PassCancelled):
        runner.run(first)
    assert (lanes[0].rows, lanes[0].resident) == (0, [])
    runner.run(second)
    assert lanes[1].rows == 8


def test_a_failed_pass_leaves_only_what_came_before_it(tmp_path) -> None:
    failing = []

    def during() -> None:
        if failing:
            raise DeviceFailed("the device is gone", fix="none")

    runner, lanes = null_runner(tmp_path, STATELESS, during=during)
    expected = read(runner, 0, TOKENS[:12])
    read(runner, 1, TOKENS[:8])
    failing.append(True)
    with pytest.raises(DeviceFailed):
        read(runner, 1, TOKENS[20:24], start=8)
    failing.clear()
    assert lanes[1].resident == list(TOKENS[:8])
    np.testing.assert_array_equal(read(runner, 1, TOKENS[8:12], start=8), expected)

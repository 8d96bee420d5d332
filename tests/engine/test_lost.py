"""The device ends with all it holds: what runs goes on, and its client never knows."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flm.core.event import Failed, FinishReason
from flm.core.request import Priority
from flm.devices.xrt.device import XrtDevice
from flm.errors import DeviceFault, DeviceLost
from flm.memory.lanes import Lanes
from flm.memory.layout import MemoryLayout
from tests.devices.test_contract import STAND_IN
from tests.engine.rig import (
    CONVERSATION,
    HEAD,
    STATEFUL,
    TAIL,
    VOCABULARY,
    Recorder,
    Rig,
    layouts,
    prompt_of,
    request_of,
    some_tokens,
    write_null_model,
)

PROMPTS = {
    "a": CONVERSATION,
    "b": prompt_of(HEAD, TAIL),
    "c": prompt_of(some_tokens(8, 25)),
    "d": CONVERSATION,
}


def ask(rig: Rig) -> None:
    """Two at a time, one of which begins like another that is being read."""
    rig.run(*(request_of(name, prompt, max_tokens=6) for name, prompt in PROMPTS.items()))


def uses_of(rig: Rig) -> int:
    """How often the device is used for that: passes, and syncs."""
    rig.uses_left = 100_000
    ask(rig)
    return 100_000 - rig.uses_left


@layouts
def test_nobody_notices_whenever_it_is_lost(tmp_path, layout) -> None:
    calm = Rig(tmp_path, layout=layout)
    for uses in range(0, uses_of(calm), 3):
        rig = Rig(tmp_path, layout=layout)
        rig.uses_left = uses
        ask(rig)
        assert rig.uses_left is None, "it was lost"
        for name in PROMPTS:
            assert rig.tokens(name) == calm.tokens(name), uses
            assert rig.text(name) == calm.text(name)
            assert rig.finished(name).reason is FinishReason.LENGTH
            assert rig.admitted(name).cached_tokens <= len(PROMPTS[name].tokens)
        kept = {node.end for node in rig.cache.slots.values()}
        assert kept >= {node.end for node in calm.cache.slots.values()}, "kept as ever"
        (line,) = (line for line in rig.log if "go on from what is kept" in line)
        assert line.startswith("told to. ")
        losses = rig.engine.losses
        assert (losses.devices, losses.rebuilt) == (1, 1)
        assert losses.resumed == int(line.rsplit(maxsplit=1)[1]) <= len(PROMPTS)


@layouts
def test_a_reply_goes_on_from_the_last_snapshot(tmp_path, layout) -> None:
    rig = Rig(tmp_path, layout=layout)
    rig.engine.submit(request_of("a", CONVERSATION, max_tokens=12))
    rig.until(lambda: len(rig.tokens("a")) == 7)
    rig.uses_left, before = 0, len(rig.steps)
    rig.run()
    read = [step.spans[0] for step in rig.steps[before:] if step.prefill]
    assert [(span.start, span.end) for span in read] == [(90, 97)], "the prompt is kept"
    calm = Rig(tmp_path, layout=layout)
    calm.run(request_of("a", CONVERSATION, max_tokens=12))
    assert rig.tokens("a") == calm.tokens("a")
    assert rig.finished("a").usage.cached_tokens == 0, "as it began"


@pytest.mark.parametrize("generated", [1, 2, 3])
@layouts
def test_what_cannot_be_kept_is_read_again_with_the_reply(tmp_path, layout, generated) -> None:
    """One token of it alone is decoded: a lone row is not read."""
    rig, calm = (Rig(tmp_path, layout=layout, cache_bytes=0) for _ in range(2))
    rig.engine.submit(request_of("a", HEAD, max_tokens=9))
    rig.until(lambda: len(rig.tokens("a")) == generated)
    rig.uses_left = 0
    rig.run()
    calm.run(request_of("a", HEAD, max_tokens=9))
    assert rig.tokens("a") == calm.tokens("a")


@layouts
def test_the_logits_kept_of_a_prompt_are_its_own_not_its_reply_s(tmp_path, layout) -> None:
    rig = Rig(tmp_path, layout=layout, chunk_len_max=256)
    rig.engine.submit(request_of("a", CONVERSATION, max_tokens=12))
    rig.until(lambda: len(rig.tokens("a")) == 7)
    rig.engine.clear(CONVERSATION.domain)
    rig.uses_left = 0
    rig.run()
    rig.run(request_of("b", CONVERSATION, max_tokens=12))
    assert rig.finished("b").usage.cached_tokens == 90
    assert rig.tokens("b") == rig.tokens("a")


def test_what_was_kept_outlives_the_device(tmp_path) -> None:
    rig = Rig(tmp_path, layout=STATEFUL)
    rig.run(request_of("a", CONVERSATION))
    rig.uses_left = 0
    rig.run(request_of("other", some_tokens(9, 20)))
    rig.run(request_of("b", CONVERSATION))
    assert rig.finished("b").usage.cached_tokens == 90
    assert rig.tokens("b") == rig.tokens("a")


def test_a_request_that_loses_it_each_time_fails_alone(tmp_path) -> None:
    def during() -> None:
        if any(span.tokens[0] == poison[0] for span in rig.steps[-1].spans):
            rig.uses_left = 0

    poison = some_tokens(11, 20)
    rig, calm = Rig(tmp_path, lanes=2, during=during), Rig(tmp_path, lanes=2)
    rig.engine.submit(request_of("a", CONVERSATION, max_tokens=20))
    rig.until(lambda: rig.tokens("a"))
    rig.run(request_of("poison", poison), request_of("b", HEAD))
    ending = rig.ending("poison")
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, DeviceLost)
    assert len([line for line in rig.log if "told to" in line]) == DeviceLost.losses_max
    calm.run(request_of("a", CONVERSATION, max_tokens=20), request_of("b", HEAD))
    assert rig.tokens("a") == calm.tokens("a")
    assert rig.tokens("b") == calm.tokens("b")


def test_a_mistake_of_ours_fails_what_ran_at_once_and_nothing_else(tmp_path) -> None:
    def during() -> None:
        if any(span.tokens[0] == poison[0] for span in rig.steps[-1].spans):
            rig.runner.device.lose()
            raise DeviceFault("ours", fix="report it")

    poison = some_tokens(11, 20)
    rig, calm = Rig(tmp_path, lanes=2, during=during), Rig(tmp_path, lanes=2)
    rig.engine.submit(request_of("a", CONVERSATION, max_tokens=20))
    rig.until(lambda: rig.tokens("a"))
    rig.run(request_of("poison", poison))
    ending = rig.ending("poison")
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, DeviceFault)
    assert len([line for line in rig.log if "ours" in line]) == 1
    calm.run(request_of("a", CONVERSATION, max_tokens=20))
    assert rig.tokens("a") == calm.tokens("a")


def test_a_device_that_does_not_come_back_ends_no_engine(tmp_path) -> None:
    def lose() -> None:
        if dead:
            rig.uses_left = 0

    dead = [True]
    rig = Rig(tmp_path, during=lose)
    idle = replace(request_of("idle", HEAD), max_tokens=0, priority=Priority.IDLE)
    rig.run(idle, *(request_of(name, CONVERSATION) for name in "abc"))
    assert all(isinstance(rig.ending(name), Failed) for name in "abc")
    assert rig.finished("idle").reason is FinishReason.CANCELLED
    dead.clear()
    rig.run(request_of("later", CONVERSATION))
    assert rig.finished("later").usage.completion_tokens == 4


def test_idle_work_is_not_tried_again(tmp_path) -> None:
    rig = Rig(tmp_path)
    rig.engine.submit(replace(request_of("i", HEAD), max_tokens=0, priority=Priority.IDLE))
    rig.uses_left = 4
    rig.run()
    assert rig.finished("i").reason is FinishReason.CANCELLED


# With a process


@pytest.fixture
def rig_of_process(tmp_path: Path) -> Iterator[Rig]:
    devices = []

    def make_runner(
        folder: Path, layout: MemoryLayout, *, lanes: int, capacity_max: int, **hooks: object
    ) -> tuple[Recorder, Lanes]:
        device = XrtDevice("npu-sim", command=STAND_IN)
        devices.append(device)
        program = device.load(write_null_model(folder, layout))
        room = Lanes(device, layout, count=lanes, capacity_max=capacity_max, capacity_start=16)
        return Recorder(program, device, layout, room, vocabulary=VOCABULARY), room

    yield Rig(tmp_path, layout=STATEFUL, make_runner=make_runner)
    for device in devices:
        device.close()


@pytest.mark.parametrize("how", ["end", "lost", "killed"])
def test_a_worker_that_ends_takes_no_reply_with_it(rig_of_process: Rig, tmp_path, how) -> None:
    rig, calm = rig_of_process, Rig(tmp_path, layout=STATEFUL)
    for name, prompt in PROMPTS.items():
        rig.engine.submit(request_of(name, prompt, max_tokens=6))
    rig.until(lambda: len(rig.tokens("a")) == 3)
    device = rig.runner.device
    assert isinstance(device, XrtDevice)
    first = device.pid
    if how == "killed":
        assert first
        os.kill(first, signal.SIGKILL)
    else:
        (tmp_path / "trouble").write_text(how)
    rig.run()
    ask(calm)
    assert device.pid != first
    for name in PROMPTS:
        assert rig.tokens(name) == calm.tokens(name)
        assert rig.finished(name).reason is FinishReason.LENGTH

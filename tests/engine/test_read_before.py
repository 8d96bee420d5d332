"""What was never read is never said to have been read, whatever ends a prompt early."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flm.core.event import Failed
from flm.core.finding import FateKind
from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.core.request import Priority, Request
from flm.errors import DeviceFailed, DeviceLost
from flm.memory.layout import MemoryLayout
from flm.prefix.explain import Explanation, explain
from flm.prefix.tally import PARKED
from tests.engine.rig import TOKENIZER, Rig, layouts, prompt_of, request_of, some_tokens

HEAD = some_tokens(1, 40)
LONG = prompt_of(HEAD, some_tokens(31, 100), some_tokens(32, 40))
NEXT = prompt_of(LONG.tokens, some_tokens(33, 12))
PART = prompt_of(LONG.tokens[:90], some_tokens(35, 30))
STRANGER = prompt_of(some_tokens(34, 20))
GAIN_MIN = 8
SAID = re.compile(r"(\d+) were (?:read before|seen before, (\d+|none) of them read)")


class Device:
    """Fails a pass when told to."""

    failing = False

    def __call__(self) -> None:
        if self.failing:
            self.failing = False
            raise DeviceFailed("told to", fix="none")


def ahead(prompt: Prompt) -> Request:
    kept_at = (Boundary(len(prompt.tokens), BoundaryKind.TURN),)
    request = request_of("ahead", Prompt(prompt.tokens, kept_at), max_tokens=0)
    return replace(request, priority=Priority.IDLE)


def read_some(rig: Rig, request: Request, chunks: int) -> None:
    rig.engine.submit(request)
    rig.step()  # it has a lane
    rig.until(lambda: len(rig.steps) >= chunks)


def explained(rig: Rig, prompt: Prompt) -> Explanation | None:
    text = TOKENIZER.decode(prompt.tokens, skip_special=False)
    return explain(None, text, rig.cache.look(prompt), TOKENIZER)


# --- what ends it ---


def give_way(rig: Rig, device: Device, chunks: int) -> None:
    read_some(rig, ahead(LONG), chunks)
    rig.engine.submit(request_of("other", STRANGER))
    rig.until(lambda: rig.tokens("other"))


def give_way_for_good(rig: Rig, device: Device, chunks: int) -> None:
    give_way(rig, device, chunks)
    rig.engine.cancel("ahead")


def be_cleared(rig: Rig, device: Device, chunks: int) -> None:
    give_way(rig, device, chunks)
    rig.engine.clear("")


def be_lost_while_ahead(rig: Rig, device: Device, chunks: int) -> None:
    read_some(rig, ahead(LONG), chunks)
    rig.uses_left = 0
    rig.run()


def be_cancelled(rig: Rig, device: Device, chunks: int) -> None:
    read_some(rig, request_of("a", LONG), chunks)
    rig.engine.interrupt("a")
    rig.engine.cancel("a")


def fail(rig: Rig, device: Device, chunks: int) -> None:
    read_some(rig, request_of("a", LONG), chunks)
    device.failing = True
    rig.run()
    assert isinstance(rig.ending("a"), Failed)


def be_lost(rig: Rig, device: Device, chunks: int) -> None:
    read_some(rig, request_of("a", LONG), chunks)
    for _ in range(DeviceLost.losses_max):
        rig.uses_left = 0
        rig.until(lambda: rig.uses_left is None)
    rig.run()
    assert isinstance(rig.ending("a"), Failed)


def be_cancelled_while_parked(rig: Rig, device: Device, chunks: int) -> None:
    read_some(rig, replace(request_of("a", LONG), priority=Priority.AGENT), max(1, chunks))
    rig.engine.submit(request_of("person", STRANGER))
    rig.until(lambda: rig.cache.tally.of(PARKED))
    rig.engine.cancel("a")


IDLE = (give_way, give_way_for_good, be_cleared, be_lost_while_ahead)
ASKED = (be_cancelled, fail, be_lost, be_cancelled_while_parked)
End = Callable[[Rig, Device, int], None]
WHY: dict[End, FateKind] = {
    be_lost_while_ahead: FateKind.NO_BOUNDARY,
    be_cancelled: FateKind.CANCELLED,
    be_cancelled_while_parked: FateKind.CANCELLED,
    fail: FateKind.FAILED,
    be_lost: FateKind.FAILED,
}
ends = pytest.mark.parametrize("end", [*IDLE, *ASKED], ids=lambda end: end.__name__)


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def rig(tmp_path: Path, layout: MemoryLayout, slots_max: int | None, device: Device) -> Rig:
    return Rig(
        tmp_path,
        layout=layout,
        lanes=1,
        chunk_len_max=16,
        gain_min=GAIN_MIN,
        slots_max=slots_max,
        ghosts_bytes=2**20,
        parked_rows=1000,
        during=device,
    )


@layouts
@ends
@pytest.mark.parametrize("slots_max", [None, 1], ids=["kept", "evicted"])
@pytest.mark.parametrize("chunks", [0, 1, 4, 9])
def test_what_was_never_read_is_never_said_to_have_been(
    rig: Rig, device: Device, end: End, chunks: int
) -> None:
    end(rig, device, chunks)
    assert rig.read_of(LONG) < len(LONG.tokens), "it was not read to its end"
    for prompt in (LONG, NEXT, PART):
        found, read = rig.cache.look(prompt), rig.read_of(prompt)
        known = 0 if end is be_cleared else read
        assert found.read == known
        assert found.offset <= read
        if why := explained(rig, prompt):
            said = SAID.search(why.line())
            assert said
            assert int(said[1]) == found.seen
            assert int((said[2] or said[1]).replace("none", "0")) == read
        elif end in IDLE or prompt is PART:
            assert known - found.offset < GAIN_MIN, "all that was read can be reused, or nearly"


@layouts
@ends
@pytest.mark.parametrize("slots_max", [None])
@pytest.mark.parametrize("chunks", [1, 4, 9])
def test_why_it_ended_is_said_and_nothing_where_nothing_is_lost(
    rig: Rig, device: Device, end: End, chunks: int
) -> None:
    end(rig, device, chunks)
    why = explained(rig, NEXT)
    if end in (give_way, give_way_for_good, be_cleared):
        assert why is None, "all that was read is kept, or nobody is to know"
        return
    assert why
    assert why.fate
    assert why.read == rig.read_of(LONG)
    assert why.fate.kind is WHY[end]
    there = why.read if end is be_lost_while_ahead else len(LONG.tokens)
    assert why.fate.offset == there


@layouts
@pytest.mark.parametrize("slots_max", [None])
def test_what_was_seen_shows_where_prompts_part_though_it_was_not_read(
    rig: Rig, device: Device
) -> None:
    give_way_for_good(rig, device, 1)
    found = rig.cache.look(PART)
    assert found.read < found.seen == 90

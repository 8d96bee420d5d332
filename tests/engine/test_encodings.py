"""A tower beside the engine: who waits for a picture holds up nobody, and none is encoded twice."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flm.core.event import Failed, Finished, FinishReason
from flm.core.picture import PATCHES, Picture, Placed, Sight, View, placed
from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.core.request import Priority
from flm.devices.device import Array
from flm.devices.null import nothing
from flm.engine.thread import EngineThread
from flm.errors import DeviceFailed
from flm.memory.layout import MemoryLayout
from flm.runner.encodings import PASSED_MAX, Encodings
from flm.runner.eyes import Eyes
from tests.engine.rig import STATEFUL, STATELESS, Rig, layouts, null_runner, request_of, some_tokens
from tests.engine.test_thread import PATIENCE_S, Gate, ask
from tests.pure.toy_disk import Told

WIDTH, SIDE, TOKENS = 12, 8, 4  # of a picture
PICTURE_BYTES = TOKENS * WIDTH * 4
SIGHT = Sight("cells", 2, 2, 4, 16, 4096, placeholder="<picture>", mark="<picture>")
TEXT, OTHER = some_tokens(1, 30), some_tokens(2, 25)


class NullTower:
    """Rows are a cell's pixels. It notes which pictures it was shown, and can be held up."""

    def __init__(self, during: Callable[[], None] = nothing) -> None:
        self.during = during
        self.fails = False
        self.shown: list[bytes] = []

    def run(self, names: Sequence[str], given: Mapping[str, Array], options: Any) -> list[Array]:
        self.during()
        if self.fails or options.terminate:
            raise RuntimeError("told to")
        patches = given[PATCHES]
        self.shown.append(patches.tobytes())
        return [np.ascontiguousarray(patches.reshape(len(patches) // 4, 4, WIDTH)[:, 0])]


def picture(number: int) -> Picture:
    random = np.random.default_rng(number)
    return Picture(SIDE, SIDE, random.integers(0, 256, SIDE * SIDE * 3, np.uint8).tobytes())


def about(*numbers: int, text: Sequence[int] = TEXT) -> Prompt:
    """Pictures, each behind the text, which goes on behind the last."""
    tokens: list[int] = []
    shown: list[Placed] = []
    for number in numbers:
        tokens += text
        shown.append(placed(View(picture(number), 2, 2), len(tokens)))
        tokens += shown[-1].ids
    tokens += text
    end = Boundary(len(tokens), BoundaryKind.END)
    return Prompt(tuple(tokens), (end,), pictures=tuple(shown))


class House:
    """An engine that sees, whose tower works when told, but for passes that find nothing."""

    def __init__(
        self,
        folder: Path,
        layout: MemoryLayout = STATELESS,
        *,
        bytes_max: int = 2**20,
        told: bool = True,
    ) -> None:
        self.tower = NullTower()
        self.eyes = Eyes(self.tower, SIGHT, width=WIDTH, bytes_max=bytes_max)  # type: ignore[arg-type]
        self.work = Told() if told else None
        self.encodings = Encodings(self.eyes, self.work)
        make = partial(null_runner, eyes=self.eyes)
        self.rig = Rig(folder, layout=layout, make_runner=make, encodings=self.encodings)

    @property
    def jobs(self) -> Told:
        assert self.work
        return self.work

    def alone(self, prompt: Prompt, name: str = "a") -> list[int]:
        """What is said to it, its pictures encoded ahead."""
        self.rig.engine.submit(request_of(name, prompt))
        self.jobs.run_all()
        self.rig.run()
        return self.rig.tokens(name)


@layouts
def test_who_waits_for_a_picture_holds_up_nobody(tmp_path, layout) -> None:
    said = House(tmp_path, layout).alone(about(1))
    house = House(tmp_path, layout)
    rig = house.rig
    rig.engine.submit(request_of("sees", about(1)))
    rig.run(request_of("reads", OTHER))
    assert rig.finished("reads")
    assert rig.of("sees") == []
    assert (rig.engine.busy, rig.engine.waiting, rig.engine.running) == (False, 1, 0)
    house.jobs.run_all()
    rig.run()
    assert rig.tokens("sees") == said
    assert house.eyes.encoded == len(house.tower.shown) == 1


@layouts
def test_a_pass_that_finds_nothing_there_has_it_encoded_then(tmp_path, layout) -> None:
    said = House(tmp_path, layout).alone(about(1, 2))
    house = House(tmp_path, layout, bytes_max=0)
    house.rig.run(request_of("a", about(1, 2)))
    assert not house.jobs.jobs, "nothing could be kept"
    assert house.rig.tokens("a") == said
    assert house.eyes.encoded == 2, "though a pass takes 16 tokens only"


def test_what_made_way_for_others_is_encoded_again(tmp_path) -> None:
    house = House(tmp_path, bytes_max=PICTURE_BYTES)
    for number in (1, 2):
        house.rig.engine.submit(request_of(str(number), about(number)))
    house.jobs.run_all()
    house.rig.run()
    assert all(house.rig.finished(name) for name in "12")
    assert house.eyes.encoded == 4, "each ahead, and each again in its turn"


@layouts
def test_what_is_kept_of_a_prompt_needs_no_tower(tmp_path, layout) -> None:
    house = House(tmp_path, layout, bytes_max=PICTURE_BYTES)
    first = about(1)
    house.alone(first)
    house.alone(about(3), "between")  # in whose place the first one's rows were
    further = replace(about(1, 2), boundaries=(*first.boundaries, Boundary(72, BoundaryKind.TURN)))
    house.rig.engine.submit(request_of("b", further))
    assert len(house.jobs.jobs) == 1, "the second picture only"
    house.jobs.run_all()
    house.rig.run()
    assert house.rig.finished("b").usage.cached_tokens > TOKENS + len(TEXT)
    assert house.eyes.encoded == 3


def test_without_reuse_all_pictures_are_encoded_ahead(tmp_path) -> None:
    house = House(tmp_path)
    house.alone(about(1))
    house.eyes._kept.clear()
    house.eyes._bytes = 0
    house.rig.engine.submit(replace(request_of("b", about(1)), reuse=False))
    assert len(house.jobs.jobs) == 1


def test_a_picture_that_several_wait_for_is_encoded_once(tmp_path) -> None:
    house = House(tmp_path)
    for name in "abc":
        house.rig.engine.submit(request_of(name, about(1, 1)))
    house.rig.engine.cancel("a")
    assert len(house.jobs.jobs) == 1
    house.jobs.run_all()
    house.rig.run()
    assert house.rig.finished("a").reason is FinishReason.CANCELLED
    assert house.rig.tokens("b") == house.rig.tokens("c") != []
    assert house.eyes.encoded == 1


def test_a_picture_that_all_have_left_is_not_encoded(tmp_path) -> None:
    house = House(tmp_path)
    for name in "ab":
        house.rig.engine.submit(request_of(name, about(1)))
        house.rig.engine.cancel(name)
    house.jobs.run_all()
    house.rig.run()
    assert house.tower.shown == []
    house.alone(about(1), "c")
    assert house.eyes.encoded == 1


def test_a_person_goes_before_programs_and_who_came_first_before_others(tmp_path) -> None:
    house = House(tmp_path)
    for number, priority in enumerate([Priority.AGENT, Priority.AGENT, Priority.INTERACTIVE]):
        house.rig.engine.submit(request_of(str(number), about(number), priority=priority))
    house.jobs.run_all()
    alone = NullTower()
    eyes = Eyes(alone, SIGHT, width=WIDTH, bytes_max=2**20)  # type: ignore[arg-type]
    for number in (2, 0, 1):
        eyes.rows(about(number).pictures[0])
    assert house.tower.shown == alone.shown


def test_no_picture_waits_forever(tmp_path) -> None:
    house = House(tmp_path)
    first = about(99).pictures
    assert house.encodings.begin(first, urgent=False)
    for number in range(PASSED_MAX + 3):
        assert house.encodings.begin(about(number).pictures, urgent=True)
    for _ in range(PASSED_MAX):
        house.jobs.run()
        assert house.eyes.missing(first)
    house.jobs.run()
    assert not house.eyes.missing(first)


def test_a_tower_that_fails_fails_its_request_alone(tmp_path) -> None:
    house = House(tmp_path)
    house.tower.fails = True
    house.rig.engine.submit(request_of("sees", about(1)))
    house.jobs.run_all()
    house.rig.run(request_of("reads", OTHER))
    ending = house.rig.ending("sees")
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, DeviceFailed)
    assert house.rig.finished("reads")
    house.tower.fails = False
    assert house.alone(about(1), "again")


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_replies_go_on_while_the_tower_is_at_work(tmp_path, gate) -> None:
    house = House(tmp_path, STATEFUL, told=False)
    house.tower.during = gate
    gate.shut()
    thread = EngineThread(house.rig.engine)
    sees = ask(thread, "sees", about(1))
    assert gate.reached.wait(PATIENCE_S)
    assert isinstance(ask(thread, "reads", OTHER).ending(), Finished)
    assert not sees.events
    gate.open.set()
    assert isinstance(sees.ending(), Finished)
    thread.close()
    house.rig.engine.check()


def test_whoever_leaves_ends_the_towers_work(tmp_path, gate) -> None:
    house = House(tmp_path, told=False)
    house.tower.during = gate
    gate.shut()
    thread = EngineThread(house.rig.engine)
    sees = ask(thread, "sees", about(1))
    assert gate.reached.wait(PATIENCE_S)
    thread.cancel("sees")
    ending = sees.ending()
    assert isinstance(ending, Finished)
    assert ending.reason is FinishReason.CANCELLED
    gate.open.set()
    thread.close()
    assert house.tower.shown == []
    house.rig.engine.check()


def test_closing_waits_for_no_picture(tmp_path) -> None:
    house = House(tmp_path, told=False)
    gate = Gate()

    def until_terminated(names: object, given: object, options: Any) -> None:
        gate()
        while not options.terminate:
            pass
        raise RuntimeError("terminated")

    house.tower.run = until_terminated  # type: ignore[method-assign,assignment]
    thread = EngineThread(house.rig.engine)
    sees = ask(thread, "sees", about(1, 2))
    assert gate.reached.wait(PATIENCE_S)
    thread.close()
    assert isinstance(sees.ending(), Finished)
    house.rig.engine.check()

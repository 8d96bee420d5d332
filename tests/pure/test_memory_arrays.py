"""Memory that is used again: never while somebody looks at it, and never more than before."""

import mmap
from collections.abc import Iterator
from random import Random
from threading import Thread

import numpy as np
import pytest

from flm.core.tensor import MemoryKind
from flm.devices.device import Array
from flm.memory import arrays
from flm.memory.arrays import empty, reuse
from flm.memory.layout import MemoryLayout, MemoryTensor
from tests.pure.mapped import Mapped

LAYOUT = MemoryLayout(
    (
        MemoryTensor("key", MemoryKind.ROWS, (2, 64), "float16"),
        MemoryTensor("state", MemoryKind.STATE, (3, 1000), "float32"),
        MemoryTensor("value", MemoryKind.ROWS, (1, 96), "float32"),
        MemoryTensor("tail", MemoryKind.STATE, (77,), "uint8"),
    )
)


@pytest.fixture(autouse=True)
def mapped(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Mapped]]:
    monkeypatch.setattr(arrays, "SMALL_BYTES_MAX", 0)
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 5 * mmap.PAGESIZE)
    monkeypatch.setattr(mmap, "mmap", Mapped)
    Mapped.begin()
    yield Mapped
    assert Mapped.held == 0, "kept after the last look at it"


def filled(count: int, value: int) -> list[Array]:
    rows, state = empty(LAYOUT, count)
    made = [*rows.values(), *state.values()]
    for array in made:
        array[...] = value
    return made


@pytest.mark.parametrize("seed", range(20))
def test_nobody_sees_the_bytes_of_another(seed: int) -> None:
    """Whatever parts of it are still looked at."""
    random = Random(seed)
    seen: list[tuple[Array, int]] = []
    for value in range(1, 100):
        with reuse():
            random.shuffle(seen)
            del seen[random.randint(2, 20) :]
            made = filled(random.randint(1, 60), value)
        for array in made:
            cut = random.randrange(len(array.reshape(-1)))
            part = random.choice([array, array[..., :1], array.reshape(-1)[cut:], array.T])
            seen.append((part, value))
        del array, made, part
        for part, told in seen:
            assert (part == told).all(), f"{told} is overwritten by {set(part.flat)}"
    del part
    seen.clear()


@pytest.mark.parametrize(("before", "new"), [(40, 0), (60, 0), (41, 0), (13, 1)])
def test_what_was_given_up_is_written_again(before: int, new: int, mapped: type[Mapped]) -> None:
    """Also where it was larger or smaller; 13 rows of both tensors go into one block."""
    kept = filled(before, 1)
    made = mapped.made
    with reuse():
        kept.clear()
        kept = filled(40, 2)
    assert mapped.made - made == new
    kept.clear()


def test_otherwise_it_goes_back(mapped: type[Mapped]) -> None:
    kept = filled(40, 1)
    kept.clear()
    assert mapped.held == 0
    kept = filled(40, 1)
    with reuse():
        kept.clear()
        assert mapped.held > 0
    assert mapped.held == 0
    with reuse():
        kept = filled(40, 1)
        kept.clear()
        assert mapped.held == 0, "there is no other to take it"


@pytest.mark.parametrize(
    ("before", "after"), [([10], 60), ([60], 10), ([33], 34), ([200], 1), ([30, 30, 30], 110)]
)
def test_no_more_is_held_than_before_or_after(
    before: list[int], after: int, mapped: type[Mapped]
) -> None:
    """Also where one that grows takes the place of several."""
    alone = filled(after, 1)
    most = mapped.held
    alone.clear()
    kept = [array for count in before for array in filled(count, 1)]
    most = max(most, mapped.held)
    mapped.begin(mapped.held)
    with reuse():
        kept.clear()
        kept = filled(after, 2)
    assert mapped.peak <= most
    kept.clear()


def test_another_thread_keeps_to_its_own(mapped: type[Mapped]) -> None:
    kept = filled(40, 1)
    with reuse():
        thread = Thread(target=kept.clear)
        thread.start()
        thread.join()
        assert mapped.held == 0


def test_no_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refused)
    with pytest.raises(MemoryError, match="of a snapshot"):
        empty(LAYOUT, 10)


def test_rows_and_state_lie_apart() -> None:
    """For rows may outlive the state."""
    rows, state = empty(LAYOUT, 10)
    assert not {id(each.base) for each in rows.values()} & {
        id(each.base) for each in state.values()
    }
    shapes = {name: array.shape for name, array in {**rows, **state}.items()}
    assert shapes == {t.name: t.held(10) for t in LAYOUT.tensors}
    assert all(np.dtype(t.dtype) == {**rows, **state}[t.name].dtype for t in LAYOUT.tensors)
    del rows, state

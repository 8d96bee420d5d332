"""range_, a loop of the array: run for real, or entered once while a body's sites are counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from npu_kernels.iron_sim.faults import not_simulated
from npu_kernels.iron_sim.value import INDEX, Value, plain


@dataclass(slots=True)
class LoopCount:
    loops: int = 0


_counting: ContextVar[LoopCount | None] = ContextVar("counting", default=None)


@contextmanager
def counting() -> Iterator[LoopCount]:
    count = LoopCount()
    token = _counting.set(count)
    try:
        yield count
    finally:
        _counting.reset(token)


def range_(
    start: Any,
    stop: Any = None,
    step: Any = None,
    *,
    iter_args: Any = None,
    insert_yield: bool = True,
) -> Iterator[Value]:
    if iter_args is not None or not insert_yield:
        raise not_simulated("range_(iter_args=, insert_yield=)")
    first, last = (0, plain(start)) if stop is None else (plain(start), plain(stop))
    count = _counting.get()
    if count is not None:
        count.loops += 1
        yield Value(int(first), INDEX)
        return
    for number in range(int(first), int(last), 1 if step is None else int(plain(step))):
        yield Value(number, INDEX)

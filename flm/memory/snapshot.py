"""A snapshot is an immutable host copy of memory, cut so that a path of them restores it.

Rows are one token's keys and values in every attention layer: a snapshot holds those of
[start, end), as [heads, end - start, width]. State is what cannot be cut by token: it sums up
all before `end`, and a snapshot holds it whole, or not at all (None: passed through only).
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

from flm.devices.device import Array

COPY_THREADS = 2
ALONE_BYTES_MAX = 2**20  # for so little no thread is woken


@dataclass(frozen=True, slots=True)
class Snapshot:
    start: int
    end: int
    rows: Mapping[str, Array]  # name -> [heads, end - start, width]
    state: Mapping[str, Array] | None  # {}: the model has none, so any row can be restored to

    def __post_init__(self) -> None:
        assert self.start < self.end, f"empty snapshot at {self.start}"
        for name, array in self.rows.items():
            assert array.shape[1] == self.end - self.start, f"{name}: {array.shape[1]} rows"


def copy(pairs: Iterable[tuple[Array, Array]]) -> None:
    """Each (target, source): all of the second into the first, which have the same shape.

    By several threads, since one does not fill the memory bus, least of all where the target's
    pages are new; every thread takes its share of each block.
    """
    jobs = list(pairs)
    if sum(source.nbytes for _, source in jobs) <= ALONE_BYTES_MAX:
        _copy(jobs)
        return
    shares = [jobs[first::COPY_THREADS] for first in range(COPY_THREADS)]
    for _ in _copiers().map(_copy, shares):
        pass


def _copy(jobs: list[tuple[Array, Array]]) -> None:
    for target, source in jobs:
        target[...] = source


@cache
def _copiers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="flm-copy")

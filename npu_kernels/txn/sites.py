"""Where a value enters a stream, found by building it at different values: word = base + k * value.

streams = {tokens: encode(sequence(tokens)) for tokens in (1, 2, 4096)}
sites = find(streams)
words = apply(words, sites, 77)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from npu_kernels.txn.faults import StreamFault
from npu_kernels.txn.words import Words

WORD = 1 << 32


@dataclass(frozen=True, slots=True)
class Site:
    index: int
    base: int
    factor: int
    least: int  # the values it was seen at: nothing is known beyond
    most: int

    def word(self, value: int) -> int:
        if not self.least <= value <= self.most:
            what = f"{value}, it is known from {self.least} to {self.most}"
            fix = "build the streams at values that enclose it"
            raise StreamFault("site-range", f"word {self.index}", what, fix)
        return (self.base + self.factor * value) % WORD


def find(streams: Mapping[int, Words], *, all_there_are: bool = False) -> tuple[Site, ...]:
    """Three values at least, for two draw a line through anything; unless there are no others."""
    if len(streams) < 3 and not all_there_are:
        raise StreamFault("site", "streams", f"{len(streams)} values; three tell a line")
    values = sorted(streams)
    if len({len(streams[value]) for value in values}) > 1:
        sizes = ", ".join(f"{value}: {len(streams[value])} words" for value in values)
        raise StreamFault(
            "site", "streams", sizes, "the number of operations must not depend on it"
        )
    table = np.stack([streams[value] for value in values]).astype(np.int64)
    moving = np.flatnonzero((table != table[0]).any(axis=0))
    return tuple(_line(int(index), values, table[:, index].tolist()) for index in moving)


def _line(index: int, values: list[int], words: list[int]) -> Site:
    span = values[-1] - values[0]
    difference = (words[-1] - words[0] + WORD // 2) % WORD - WORD // 2
    factor, rest = divmod(difference, span)
    base = words[0] - factor * values[0]
    lies = all((base + factor * v - w) % WORD == 0 for v, w in zip(values, words, strict=True))
    if rest or not lies:
        points = ", ".join(f"{v}: 0x{w:08x}" for v, w in zip(values, words, strict=True))
        raise StreamFault("site", f"word {index}", f"no line through {points}")
    return Site(index, base % WORD, factor, values[0], values[-1])


def apply(words: Words, sites: Iterable[Site], value: int) -> Words:
    """A copy of the stream at another value."""
    patched = words.copy()
    for site in sites:
        if site.index >= len(words):
            raise StreamFault("site", f"word {site.index}", f"the stream has {len(words)}")
        patched[site.index] = site.word(value)
    return patched

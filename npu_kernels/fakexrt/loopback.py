"""The simplest array: what goes in at MM2S n of a column comes out at its S2MM n, through a fifo.

A word written to core memory at offset 0 of the column is added to every word: a runtime parameter.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from npu_kernels.txn import StreamFault, Words

CORE_ROW = 2


class Loopback:
    def __init__(self, words: int = 4096) -> None:
        self._capacity = words
        self._fifos: dict[tuple[int, int], Words] = defaultdict(lambda: np.zeros(0, np.uint32))
        self._added: dict[int, int] = defaultdict(int)

    def write(self, column: int, channel: int, data: Words) -> int:
        fifo = self._fifos[column, channel]
        part = data[: self._capacity - len(fifo)] + np.uint32(self._added[column])
        self._fifos[column, channel] = np.concatenate([fifo, part])
        return len(part)

    def read(self, column: int, channel: int, count: int) -> Words:
        fifo = self._fifos[column, channel]
        self._fifos[column, channel] = fifo[count:]
        return fifo[:count]

    def poke(self, column: int, row: int, offset: int, value: int) -> None:
        if row == CORE_ROW and offset == 0:
            self._added[column] = value

    def balanced(self) -> None:
        if any(len(fifo) for fifo in self._fifos.values()):
            raise StreamFault("balance", "end", self.standstill(), "drain what was filled")

    def close(self) -> None:
        self._fifos.clear()

    def standstill(self) -> str:
        held = ", ".join(
            f"fifo {number} of column {column} holds {len(fifo)} words of {self._capacity}"
            for (column, number), fifo in sorted(self._fifos.items())
        )
        return held or "nothing was ever written"


def array(words: int = 4096) -> Loopback:
    return Loopback(words)

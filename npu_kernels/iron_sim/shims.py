"""An array without its sequence: words go in and out at the shims' channels, as a stream says."""

from __future__ import annotations

import numpy as np

from npu_kernels.iron_sim.calls import Kernels
from npu_kernels.iron_sim.record import Record
from npu_kernels.iron_sim.simulate import Array
from npu_kernels.iron_sim.streams import Move
from npu_kernels.iron_sim.walk import Walk, Words


class ShimArray:
    """What its cores hold stays from stream to stream, until it is closed."""

    def __init__(self, record: Record, kernels: Kernels) -> None:
        self._array = Array(record, kernels)
        self._wanting: dict[str, None] = {}  # fifos of which more is wanted than there is

    def close(self) -> None:
        self._array.close()

    def write(self, column: int, channel: int, data: Words) -> int:
        """Words to the stream of MM2S `channel`; how many of them it took, maybe none."""
        return self._moved(column, True, channel, data).moved

    def read(self, column: int, channel: int, count: int) -> Words:
        """Up to `count` words from the stream of S2MM `channel`, maybe none."""
        move = self._moved(column, False, channel, np.empty(count, np.uint32))
        if move.done:
            self._wanting.pop(move.name, None)
        else:
            self._wanting[move.name] = None
        return move.memory[: move.moved]

    def _moved(self, column: int, fills: bool, channel: int, memory: Words) -> Move:
        """A transfer of all of it, taken back as soon as nothing moves any more."""
        fifo = self._array.layout.fifo_at(column, fills, channel)
        move = Move(memory, Walk(0, (len(memory),), (1,)), fifo)
        host = self._array.host(fifo)
        host.push(move)
        self._array.settle()
        if not move.done:
            host.queue.remove(move)
        return move

    def poke(self, column: int, row: int, offset: int, value: int) -> None:
        """A word of a parameter, or a barrier's lock."""
        self._array.poke(column, row, offset, value)

    def balanced(self) -> None:
        self._array.balanced()

    def standstill(self) -> str:
        """Who waits for whom, once nothing moves."""
        wanted = list(self._wanting)
        moves = [Move(np.empty(1, np.uint32), Walk(0, (1,), (1,)), fifo) for fifo in wanted]
        for move in moves:
            self._array.host(move.name).queue.append(move)
        try:
            return str(self._array.deadlock(wanted[0] if wanted else None))
        finally:
            for move in moves:
                self._array.host(move.name).queue.remove(move)

"""Which DMA channel of which tile each fifo uses, in the order they are declared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from npu_kernels.iron_sim.record import End, Record, Tile


@dataclass(frozen=True, slots=True)
class Channel:
    """S2MM brings words into a tile's memory, MM2S takes them out; the shim's is the host's."""

    tile: Tile
    into_memory: bool
    number: int
    fifo: str
    end: End


def channels(record: Record) -> tuple[Channel, ...]:
    used: Counter[tuple[Tile, bool]] = Counter()
    found = []
    for fifo in record.fifos:
        if fifo.shared:
            continue
        ends = [(fifo.producer, False), *((end, True) for end in fifo.consumers)]
        for end, into in ends:
            number = used[end.tile, into]
            used[end.tile, into] += 1
            found.append(Channel(end.tile, into, number, fifo.name, end))
    return tuple(found)

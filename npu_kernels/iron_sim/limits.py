"""What the array has and what its DMAs can say (AIE2P; XDNA2, and XDNA1 where it is alike)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

QUEUE_DEPTH = 4  # started transfers that a shim channel holds; a fifth is dropped, silently
QUEUE_DEPTH_ADVISED = 3
CORE_DATA_BYTES = 64 * 1024
CORE_PROGRAM_BYTES = 16 * 1024
MEMTILE_DATA_BYTES = 512 * 1024
STACK_BYTES = 1024  # IRON's default
L1_MULTIPLE_BYTES = 64  # what comes after a buffer of another size is misaligned
TRANSFER_BYTES_ADVISED = 256  # one of 128 has arrived as zeros
ARGUMENTS_ADVISED = 5  # the firmware adds the DDR aperture only to these
JOIN_ADVISED = 4
REPEAT_MAX = 256  # the queue's 8-bit repeat count
ITERATION_WRAP_MAX = 64


@dataclass(frozen=True, slots=True)
class Dma:
    """A tile's DMA: channels each way, buffer descriptors, and the fields of one of them."""

    channels: int
    descriptors: int
    dims: int
    wraps: tuple[int | None, ...]  # innermost first; None has no such field
    step_max: int  # words
    length_max: int  # words
    locks: int


DMAS: dict[Literal["core", "memtile", "shim"], Dma] = {
    "core": Dma(2, 16, 3, (255, 255, None), 1 << 13, (1 << 14) - 1, 16),
    "memtile": Dma(6, 48, 4, (1023, 1023, 1023, None), 1 << 17, (1 << 17) - 1, 64),
    "shim": Dma(2, 16, 3, (1023, 1023, None), 1 << 20, (1 << 32) - 1, 16),
}

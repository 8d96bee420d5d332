"""A shim's buffer descriptor: eight words that say which words of memory, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npu_kernels.txn.faults import StreamFault

DESCRIPTORS = 16
DESCRIPTOR_WORDS = 8
WRAP_MAX = (1 << 10) - 1
STEP_MAX = 1 << 20
ITERATIONS_MAX = 64
BURST_LONGEST = 3
CACHED = 2  # AxCache: as mlir-aie has it


@dataclass(frozen=True, slots=True)
class Dim:
    """`size` steps of `step` words; a size of 0 never wraps."""

    size: int = 0
    step: int = 1


@dataclass(frozen=True, slots=True)
class Descriptor:
    length: int  # words of one pass
    d0: Dim = field(default_factory=Dim)
    d1: Dim = field(default_factory=Dim)
    d2_step: int = 1
    iteration: Dim = field(default_factory=lambda: Dim(1))
    iteration_now: int = 0
    following: int | None = None  # the descriptor that goes on
    valid: bool = True
    low: int = 0  # the address, before it is patched
    packet: int = 0  # word 2: packet header, high address bits
    burst: int = BURST_LONGEST
    secure: bool = False
    attributes: int = CACHED << 4  # SMID, AxCache, AxQoS
    locks: int = 0  # bits 24..0 of word 7
    last_suppressed: bool = False

    @classmethod
    def of(cls, words: Sequence[int]) -> Descriptor:
        length, low, packet, w3, w4, w5, w6, w7 = words
        return cls(
            length=length,
            d0=Dim(w3 >> 20 & 0x3FF, (w3 & 0xFFFFF) + 1),
            d1=Dim(w4 >> 20 & 0x3FF, (w4 & 0xFFFFF) + 1),
            d2_step=(w5 & 0xFFFFF) + 1,
            iteration=Dim((w6 >> 20 & 0x3F) + 1, (w6 & 0xFFFFF) + 1),
            iteration_now=w6 >> 26,
            following=w7 >> 27 & 0xF if w7 >> 26 & 1 else None,
            valid=bool(w7 >> 25 & 1),
            low=low,
            packet=packet,
            burst=w4 >> 30,
            secure=bool(w3 >> 30),
            attributes=w5 >> 20,
            locks=w7 & 0x1FFFFFF,
            last_suppressed=bool(w7 >> 31),
        )

    def words(self) -> tuple[int, ...]:
        """A field out of its range is a StreamFault."""
        self._ranges()
        chain = 0 if self.following is None else self.following << 27 | 1 << 26
        return (
            self.length,
            self.low,
            self.packet,
            int(self.secure) << 30 | self.d0.size << 20 | self.d0.step - 1,
            self.burst << 30 | self.d1.size << 20 | self.d1.step - 1,
            self.attributes << 20 | self.d2_step - 1,
            self.iteration_now << 26 | self.iteration.size - 1 << 20 | self.iteration.step - 1,
            int(self.last_suppressed) << 31 | chain | int(self.valid) << 25 | self.locks,
        )

    def _ranges(self) -> None:
        steps = (self.d0.step, self.d1.step, self.d2_step, self.iteration.step)
        for rule, value, least, most in (
            ("length", self.length, 0, 2**32 - 1),
            *(("step", step, 1, STEP_MAX) for step in steps),
            *(("wrap", size, 0, WRAP_MAX) for size in (self.d0.size, self.d1.size)),
            ("iteration", self.iteration.size, 1, ITERATIONS_MAX),
            ("chain", self.following or 0, 0, DESCRIPTORS - 1),
        ):
            if not least <= value <= most:
                raise StreamFault(rule, "descriptor", f"{value}, {least} to {most} can be said")

    @property
    def locked(self) -> bool:
        """It acquires or releases a lock."""
        return bool(self.locks >> 12 & 1 or self.locks >> 18)

    @property
    def linear(self) -> bool:
        return not self.d0.size and self.d0.step == 1

    @property
    def run_words(self) -> int:
        """What its wraps must divide."""
        return max(self.d0.size, 1) * max(self.d1.size, 1)

    @property
    def last(self) -> int:
        """The highest word of a pass, from its base."""
        if not self.length:
            return 0
        return max(self._offset(n) for n in self._corners())

    def _corners(self) -> list[int]:
        """Words of a pass among which the highest is, all steps being positive."""
        ends = [self.length - 1]
        for run in (self.d0.size, self.run_words):
            if run:
                ends.append(self.length // run * run - 1)
        return [end for end in ends if end >= 0]

    def _offset(self, number: int) -> int:
        outer = outermost = 0
        if self.d0.size:
            outer, number = divmod(number, self.d0.size)
            if self.d1.size:
                outermost, outer = divmod(outer, self.d1.size)
        return number * self.d0.step + outer * self.d1.step + outermost * self.d2_step

    def offsets(self, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Where the words [start, stop) of a pass are, from its base."""
        inner = np.arange(start, stop, dtype=np.int64)
        outer = np.zeros_like(inner)
        outermost = np.zeros_like(inner)
        if self.d0.size:
            outer, inner = np.divmod(inner, self.d0.size)
            if self.d1.size:
                outermost, outer = np.divmod(outer, self.d1.size)
        return inner * self.d0.step + outer * self.d1.step + outermost * self.d2_step

    def iteration_offset(self, repetition: int) -> int:
        index = (self.iteration_now + repetition) % self.iteration.size
        return index * self.iteration.step

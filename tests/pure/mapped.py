"""Mappings of memory that are counted, with what Python's own allocator holds if that is traced."""

import mmap
import tracemalloc
from typing import Any, ClassVar

_Mmap = mmap.mmap


class Mapped(_Mmap):
    """In place of `mmap.mmap`. In bytes, of all of them."""

    made: ClassVar[int] = 0
    held: ClassVar[int] = 0
    peak: ClassVar[int] = 0

    @classmethod
    def begin(cls, held: int = 0) -> None:
        cls.held, cls.peak = held, held

    @classmethod
    def add(cls, size: int) -> None:
        """At each change, since in between only the other may peak."""
        cls.look()
        cls.held += size
        cls.look()

    @classmethod
    def look(cls) -> None:
        traced = tracemalloc.get_traced_memory()[1] if tracemalloc.is_tracing() else 0
        cls.peak = max(cls.peak, cls.held + traced)
        if tracemalloc.is_tracing():
            tracemalloc.reset_peak()

    def __new__(cls, *args: Any, **named: Any) -> "Mapped":
        self = super().__new__(cls, *args, **named)
        Mapped.made += 1
        cls.add(len(self))
        return self

    def resize(self, size: int) -> None:
        before = len(self)
        super().resize(size)
        self.add(size - before)

    def __del__(self) -> None:
        self.add(-len(self))

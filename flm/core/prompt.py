"""A prompt is token ids, and the boundaries where another prompt may part from it.

Offsets count the tokens that come before; ranges are half open, [start, end).
"""

from dataclasses import dataclass, field
from enum import Enum
from struct import pack

from flm.core.picture import Placed


class BoundaryKind(Enum):
    """Why a place is worth a snapshot (docs/design.md, section 4)."""

    HEAD = "head"  # end of system prompt and tools: shared between conversations
    HINT = "hint"  # where the client asked for it, by cache_control
    TURN = "turn"  # the last point every future user message will share
    OPENER = "opener"  # the last point the next step of this tool loop will share
    FORK = "fork"  # where prompts were seen to part
    END = "end"  # the whole prompt, kept with the logits of its last token

    __hash__ = object.__hash__  # Enum's own is Python, and making room asks thousands of times


@dataclass(frozen=True, slots=True)
class Boundary:
    offset: int
    kind: BoundaryKind


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids with strictly rising boundaries in (0, len(tokens)].

    Prompts of one `domain` share what is kept; nobody else learns of it.
    `pictures` stand in it by ids of their own (`Placed.ids`).
    `packed` is the same ids as native int32: long prompts are compared by their bytes, and packing
    16K of them takes longer than finding them in the prefix cache.
    """

    tokens: tuple[int, ...]
    boundaries: tuple[Boundary, ...] = ()
    domain: str = ""
    pictures: tuple[Placed, ...] = ()
    packed: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "packed", pack(f"{len(self.tokens)}i", *self.tokens))
        offsets = [boundary.offset for boundary in self.boundaries]
        assert offsets == sorted(set(offsets)), f"boundaries out of order: {offsets}"
        assert all(0 < offset <= len(self.tokens) for offset in offsets), offsets

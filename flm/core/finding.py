"""What is known of a prompt before it is read: what of it is kept, was seen, and was lost."""

from dataclasses import dataclass
from enum import Enum

from flm.core.prompt import BoundaryKind, Prompt


class FateKind(Enum):
    """What became of a snapshot. The value is said in the log."""

    EVICTED = "evicted"
    SMALL_GAIN = "too small a gain"
    NO_ROOM = "no room"
    TOO_LONG = "longer than the budget"
    CANCELLED = "cancelled before it was reached"
    FAILED = "failed before it was reached"
    BROKEN = "broken on disk"
    NO_BOUNDARY = "no boundary"  # nothing was noted: no prompt had one

    @property
    def reached(self) -> bool:
        """Whether tokens were read up to it: then alone there could be a snapshot."""
        return self not in (FateKind.CANCELLED, FateKind.FAILED)


@dataclass(frozen=True, slots=True)
class Fate:
    """At `offset` nothing is kept; `boundary` is what was to be, None if unknown."""

    kind: FateKind
    offset: int
    boundary: BoundaryKind | None = None
    outgrown: bool = False  # evicted, for its conversation had a newer one

    def __str__(self) -> str:
        words = [self.kind.value]
        if self.boundary:
            words.append(f"({'an outgrown ' if self.outgrown else ''}{self.boundary.value})")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Finding:
    """What the engine's thread can tell cheaply about a prompt; `explain` reads it elsewhere.

    `prompt.tokens[:offset]` would be reused now, from `tier` (None: nothing would);
    `prompt.tokens[:seen]` begins an earlier prompt, which goes on with `theirs` (packed, may be
    empty); of these the first `read` were read, for whatever prompt, and not all of them need be:
    it may have ended early, or have been read ahead in part. `offset` <= `read` <= `seen`.
    `fates` lie in (offset, seen]. `gain_min` is the least that is worth a save.
    """

    prompt: Prompt
    offset: int
    tier: str | None
    seen: int
    read: int
    theirs: bytes
    fates: tuple[Fate, ...]
    gain_min: int

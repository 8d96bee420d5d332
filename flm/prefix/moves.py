"""What comes to be kept and what goes, told as it happens to whoever watches a cache."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from flm.core.prompt import BoundaryKind


class Moved(Enum):
    """What became of a snapshot in memory."""

    KEPT = "kept"
    EVICTED = "evicted"  # for another one
    OUTGROWN = "outgrown"  # and evicted: its conversation has a newer one
    WRITTEN = "written"  # the disk has it too
    LEFT = "left"  # for the disk, which alone has it now
    FORGOTTEN = "forgotten"  # it was cleared, or could not be used


@dataclass(frozen=True, slots=True)
class Move:
    """Of the snapshot at `offset`; `bytes_kept` is what all take in memory afterwards."""

    domain: str
    what: Moved
    kind: BoundaryKind
    offset: int
    bytes_kept: int


Watch = Callable[[Move], None]  # on the engine's thread or the disk's: it must not wait

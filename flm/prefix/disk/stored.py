"""What goes to the disk and what comes back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flm.core.prompt import BoundaryKind
from flm.devices.device import Array
from flm.errors import FlmError


class DiskUnusable(FlmError):
    """Nothing can be kept there; the server runs without."""


class DiskTaken(DiskUnusable):
    """Another process keeps there."""


class BrokenEntry(Exception):
    """What was found cannot be read. It is out of the index by now: read the prompt instead.

    `gone`: it was given up in the meantime, nothing was wrong with it.
    """

    def __init__(self, name: str, why: str, *, gone: bool = False) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name
        self.why = why
        self.gone = gone


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [start, stop) of a segment that has them up to `end`."""

    segment: int
    start: int
    stop: int
    end: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A place that a prompt can start from: `offset` of its tokens need no computing."""

    offset: int
    kind: BoundaryKind
    entry: int  # the snapshot that the rows belong to; at `offset`, if the model has state
    parts: tuple[Part, ...]  # from 0 to `offset`
    row_bytes: int
    state_bytes: int
    logits_bytes: int  # 0: none, so that at least one token is left to compute

    def bytes(self, start: int) -> int:
        """To read when the rows before `start` are had already."""
        rows = max(0, self.offset - start)
        return rows * self.row_bytes + self.state_bytes + self.logits_bytes


@dataclass(frozen=True, slots=True)
class Loaded:
    start: int
    end: int
    rows: Mapping[str, Array]  # name -> [heads, end - start, width]
    state: Mapping[str, Array]  # {}: the model has none
    logits: Array | None  # [vocabulary], of the last token


@dataclass(frozen=True, slots=True)
class Piece:
    start: int
    end: int
    rows: Mapping[str, Array]  # name -> [heads, end - start, width]


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A snapshot that the disk may lack. Its arrays are used in place: they must never change.

    `pieces` follow each other up to the end of `tokens`, from any row that the disk has or from 0.
    """

    domain: str
    tokens: bytes  # from 0, packed
    kind: BoundaryKind
    pieces: Sequence[Piece]
    state: Mapping[str, Array]
    logits: Array | None = None  # [vocabulary], float32


@dataclass(frozen=True, slots=True)
class OnDisk:
    """One snapshot on disk, for people."""

    number: int
    domain: str
    offset: int
    kind: BoundaryKind
    used_at: float  # seconds since 1970
    own_bytes: int  # of its state and logits
    above: int | None  # number of the next one towards the start of the prompt

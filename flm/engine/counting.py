"""What reuse saved and what it cost, added to the prefix cache's tally; what was lost with the
device.
"""

from dataclasses import dataclass

from flm.core.request import Priority
from flm.core.sequence import Sequence
from flm.engine.active import Active
from flm.errors import DeviceLost
from flm.prefix.lease import Manners
from flm.prefix.tally import (
    AHEAD,
    AHEAD_S,
    HITS,
    MISSES,
    READ,
    RESTORE_S,
    RESTORED,
    RESTORES,
    REUSED,
    Tally,
)


@dataclass(slots=True)
class Losses:
    """Written by the engine's thread; others may read."""

    devices: int = 0
    rebuilt: int = 0  # times that a pass ran after a loss, or several
    resumed: int = 0  # running requests that went on from what is kept
    open: bool = False  # lost, and no pass has run since

    def note(self, lost: DeviceLost, resumed: int) -> str:
        """What is to be said of it."""
        self.devices += 1
        self.resumed += resumed
        self.open = True
        return f"{lost.message}. Requests that go on from what is kept: {resumed}"

    def over(self) -> None:
        """A pass has ended well."""
        self.rebuilt += self.open
        self.open = False


def count_restored(tally: Tally, active: Active, copied: int, seconds: float) -> None:
    """`copied` bytes went to its lane; without any, what it reuses was there still."""
    sequence = active.sequence
    if not active.lease.offset:
        return
    if not copied:
        sequence.tier = "lane"
    tally.add(RESTORES, sequence.tier)
    tally.add(RESTORED, sequence.tier, by=copied)
    tally.add(RESTORE_S, sequence.tier, by=seconds)


def count_ahead(tally: Tally, active: Active, tokens: int, seconds: float) -> None:
    """A chunk was read, before anybody asked for it if it was idle work to keep."""
    if active.lease.manners is Manners.MODEST:
        tally.add(AHEAD, "read", by=tokens)
        tally.add(AHEAD_S, by=seconds)


def count_wasted(tally: Tally, active: Active) -> None:
    """It leaves its lane: what was read ahead and is not kept was read for nothing."""
    lost = active.sequence.computed - active.lease.kept_to
    if active.lease.manners is Manners.MODEST and lost > 0:
        tally.add(AHEAD, "wasted", by=lost)


def count_read(tally: Tally, sequence: Sequence) -> None:
    """Its prompt is read."""
    if sequence.request.priority is Priority.IDLE:
        return
    tally.add(READ, by=sequence.prompt_length - sequence.cached_tokens)
    if sequence.cached_tokens:
        tally.add(HITS, sequence.tier, sequence.kind)
        tally.add(REUSED, sequence.tier, sequence.kind, by=sequence.cached_tokens)
    elif sequence.request.reuse:
        tally.add(MISSES)

"""What reuse saved and what it cost, added to the prefix cache's tally."""

from flm.core.request import Priority
from flm.core.sequence import Sequence
from flm.prefix.tally import (
    AHEAD,
    AHEAD_S,
    HITS,
    READ,
    RESTORE_S,
    RESTORED,
    RESTORES,
    REUSED,
    Tally,
)


def count_restored(tally: Tally, sequence: Sequence, copied: int, seconds: float) -> None:
    """`copied` bytes went to its lane; without any, what it reuses was there still."""
    if not sequence.cached_tokens:
        return
    if not copied:
        sequence.tier = "lane"
    tally.add(RESTORES, sequence.tier)
    tally.add(RESTORED, sequence.tier, by=copied)
    tally.add(RESTORE_S, sequence.tier, by=seconds)


def count_read(tally: Tally, sequence: Sequence, now: float) -> None:
    """Its prompt is read."""
    request = sequence.request
    read = sequence.prompt_length - sequence.cached_tokens
    if request.priority is Priority.IDLE:
        if request.reuse:
            tally.add(AHEAD, "read", by=read)
            tally.add(AHEAD_S, by=now - (sequence.admitted_at or now))
        return
    tally.add(READ, by=read)
    if sequence.cached_tokens:
        tally.add(HITS, sequence.tier, sequence.kind)
        tally.add(REUSED, sequence.tier, sequence.kind, by=sequence.cached_tokens)

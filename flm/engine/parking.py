"""Who gives its lane up to a person, and how: its memory goes away in windows, and comes back.

* Only a program's request gives way, and only to a person's; not while a person waits for what it
  reads, nor in the grace of one that was passed often. Who has the least to copy goes first, the
  youngest of such.
* One lane moves at a time, a window a step, and what its lease holds in the trie is not copied.
* Sampler, reply and lease stay as they are, and memory comes back bit for bit: whoever was away
  goes on with the token that comes next.

Invariants, which `check` asserts:
  * Who is away has no lane. Who comes back has one, but no pass; who leaves has both its lane and,
    should it not have to leave after all, the memory in it.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from flm.core.alike import common_length
from flm.core.request import Priority
from flm.core.sequence import Sequence
from flm.engine.active import Active
from flm.memory.lanes import Lanes
from flm.memory.parked import Parked, Windows
from flm.memory.snapshot import Snapshot
from flm.runner.runner import Runner


@dataclass(eq=False, slots=True)
class Away:
    """`windows` None: it had nothing in its lane yet."""

    active: Active
    windows: Windows | None


class Parking:
    def __init__(self, runner: Runner, lanes: Lanes, parked: Parked) -> None:
        self.parked = parked
        self._runner = runner
        self._lanes = lanes
        self._away: dict[str, Away] = {}  # by request id
        self._leaving: Away | None = None
        self._returning: Away | None = None

    def __len__(self) -> int:
        return len(self._away) + (self._returning is not None)

    def __iter__(self) -> Iterator[Active]:
        yield from [each.active for each in list(self._away.values())]
        if self._returning:
            yield self._returning.active

    @property
    def laneless(self) -> int:
        return len(self._away)

    @property
    def leaving(self) -> Active | None:
        return self._leaving.active if self._leaving else None

    @property
    def returning(self) -> Active | None:
        return self._returning.active if self._returning else None

    @property
    def ready(self) -> list[Sequence]:
        """Who could come back now."""
        return [] if self._returning else [each.active.sequence for each in self._away.values()]

    def begin(self, actives: Iterable[Active], led: Collection[Active]) -> Active | None:
        """Choose who leaves, if there is room for what it has. `led`: whom a person follows."""
        assert self._leaving is None
        able = [each for each in actives if _gives_way(each.sequence) and each not in led]
        if not able:
            return None
        active = min(able, key=lambda each: (_to_copy(each), -each.sequence.number))
        windows = None
        if count := _to_copy(active):
            computed, read = active.sequence.computed, len(self._lanes[active.lane].resident)
            windows = self.parked.open(computed - count, computed, read=read)
            if windows is None:
                return None
        self._leaving = Away(active, windows)
        return active

    def save(self) -> bool:
        """A window more of who leaves; whether it is away now, its lane to be given back. Without
        room after all it stays. Raises DeviceFailed.
        """
        away = self._leaving
        assert away
        active, windows = away.active, away.windows
        if windows:
            rows = self.parked.window(windows, active.sequence.computed)
            try:
                self.parked.put(windows, self._runner.park(active.lane, rows.start, rows.stop))
            except (OSError, MemoryError) as error:
                self.call_off()
                self.parked.refused(error)
                return False
            if windows.end < active.sequence.computed:
                return False
        self._leaving = None
        self._away[active.id] = away
        active.restored = active.restored and windows is not None
        active.sequence.lane = None
        return True

    def call_off(self) -> None:
        """Who leaves stays."""
        away, self._leaving = self._leaving, None
        if away and away.windows:
            self.parked.close(away.windows)

    def bring(self, sequence: Sequence, lane: int) -> tuple[Active, bool]:
        """It has a lane again; whether all that it had is yet to be brought there."""
        away = self._away.pop(sequence.request.id)
        active, windows = away.active, away.windows
        active.lane = sequence.lane = lane
        if windows is None:
            return active, False
        self._returning = away
        held = common_length(self._lanes[lane].resident, sequence.tokens[: windows.read])
        self._lanes.rewind(lane, min(held, sequence.computed - 1))  # the state comes with the last
        return active, True

    def turn_back(self) -> int | None:
        """Whoever comes back stays away, unless it has grace: the lane it would have had."""
        away = self._returning
        if away is None or away.active.sequence.grace:
            return None
        self._returning, self._away[away.active.id] = None, away
        away.active.sequence.lane = None
        return away.active.lane

    def load(self) -> Active | None:
        """A window more of who comes back; who it is, once all is there. Raises DeviceFailed;
        OSError if the disk does not give it.
        """
        away = self._returning
        assert away
        active, windows = away.active, away.windows
        assert windows
        start = self._lanes[active.lane].rows
        if start < windows.start:
            snapshot = self._kept(active, start, windows.start)
        else:
            snapshot = self.parked.get(windows, start)
        tokens, read = active.sequence.tokens[start : snapshot.end], start < windows.read
        self._runner.unpark(active.lane, tokens, snapshot, read=read)
        if snapshot.end < active.sequence.computed:
            return None
        self.forget(active)
        return active

    def find(self, request_id: str) -> Active | None:
        return next((active for active in self if active.id == request_id), None)

    def forget(self, active: Active) -> None:
        """It has come back, or has ended: what it had here goes."""
        for away in (self._leaving, self._returning, self._away.pop(active.id, None)):
            if away and away.active is active and away.windows:
                self.parked.close(away.windows)
        if self.leaving is active:
            self._leaving = None
        if self.returning is active:
            self._returning = None

    def check(self) -> None:
        self.parked.check()
        for away in self._away.values():
            assert away.active.sequence.lane is None
            assert away.active.restored == (away.windows is not None)
            if away.windows:
                assert away.windows.end == away.active.sequence.computed
        if self._returning:
            assert self._returning.active.lane == self._returning.active.sequence.lane

    def _kept(self, active: Active, start: int, end: int) -> Snapshot:
        """Rows from `start` on, a window at the most, of what its lease holds in the trie."""
        piece = next(each for each in active.lease.way(end) if each.end > start)
        end = min(piece.end, start + self.parked.window_rows)
        rows = {
            name: array[:, start - piece.start : end - piece.start]
            for name, array in piece.rows.items()
        }
        return Snapshot(start, end, rows, None)


def _gives_way(sequence: Sequence) -> bool:
    return sequence.request.priority is Priority.AGENT and not sequence.grace


def _to_copy(active: Active) -> int:
    """Rows in its lane that its lease does not hold: one at least, for the state comes with it."""
    computed = active.sequence.computed
    return max(1, computed - active.lease.kept_to) if active.restored and computed else 0

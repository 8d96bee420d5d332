"""How a request ends: the last word on it, and what it had is given back."""

from collections.abc import Callable

from flm.core.event import Event, Failed, Finished, FinishReason
from flm.core.finding import FateKind
from flm.core.sequence import Phase, Sequence
from flm.engine.active import Active, usage
from flm.engine.counting import count_wasted
from flm.engine.idle import IdleWork
from flm.engine.parking import Parking
from flm.memory.lanes import Lanes
from flm.prefix.tally import Tally

LATELY = 8  # requests


class Ending:
    """`actives` and `events` are the engine's."""

    def __init__(
        self,
        actives: dict[str, Active],
        events: list[Event],
        lanes: Lanes,
        parking: Parking,
        idle: IdleWork,
        tally: Tally,
        clock: Callable[[], float],
    ) -> None:
        self._actives = actives
        self._events = events
        self._lanes = lanes
        self._parking = parking
        self._idle = idle
        self._tally = tally
        self._clock = clock
        self.lane_s: float | None = None  # how long a request has its lane, of late

    def finish(self, active: Active, reason: FinishReason, text: str = "") -> None:
        if reason is FinishReason.CANCELLED:
            active.lease.note_unreached(active.sequence.computed, FateKind.CANCELLED)
        self.leave(active)
        self._idle.forget(active.id)
        self.say(active.sequence, reason, text)

    def say(self, sequence: Sequence, reason: FinishReason, text: str = "") -> None:
        sequence.phase = Phase.FINISHED
        spent = usage(sequence, self._clock())
        if sequence.generated:
            took = spent.prefill_s + spent.decode_s
            before = took if self.lane_s is None else self.lane_s
            self.lane_s = before + (took - before) / LATELY
        self._events.append(Finished(sequence.request.id, reason, spent, text))

    def fail(self, active: Active, error: Exception) -> None:
        if active.sequence.lane is not None:
            self._lanes.forget(active.lane)
        active.lease.note_unreached(active.sequence.computed, FateKind.FAILED)
        self.leave(active)
        self._idle.forget(active.id)
        self._events.append(Failed(active.id, error))

    def leave(self, active: Active) -> None:
        """It has neither lane nor lease from here on."""
        count_wasted(self._tally, active)
        self._actives.pop(active.id, None)
        self._parking.forget(active)
        active.sequence.phase = Phase.FINISHED
        if active.sequence.lane is not None:
            self._lanes.release(active.lane)
        active.lease.close()

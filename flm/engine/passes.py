"""Passes: run, timed, ended early if nobody needs them; and who has to go for one that fails."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flm.core.event import FinishReason
from flm.core.step import Step
from flm.devices.device import Array
from flm.engine.active import Active
from flm.engine.counting import Losses, count_ahead
from flm.engine.ending import Ending
from flm.engine.scheduler import Pace
from flm.errors import DeviceFailed, NoRoom, PassCancelled
from flm.prefix.tally import Tally
from flm.runner.runner import Runner


@dataclass(eq=False, slots=True)
class Flight:
    """The pass that runs, and for whom."""

    step: Step
    request_ids: tuple[str, ...]
    interrupted: bool = False


class Passes:
    """For one thread, but `interrupt`, which is for any."""

    def __init__(
        self,
        runner: Runner,
        pace: Pace,
        ending: Ending,
        tally: Tally,
        clock: Callable[[], float],
    ) -> None:
        self._runner = runner
        self._pace = pace
        self._ending = ending
        self._tally = tally
        self._clock = clock
        self._flight: Flight | None = None
        self.losses = Losses()

    def interrupt(self, request_id: str) -> None:
        """End the running pass if it is for nobody else."""
        flight = self._flight
        if flight is not None and flight.request_ids == (request_id,):
            flight.interrupted = True
            self._runner.cancel(flight.step)

    def run(self, step: Step, actives: Sequence[Active]) -> dict[int, Array] | None:
        """Logits by lane, or None if some or all of `actives` had to go."""
        self._flight = flight = Flight(step, tuple(active.id for active in actives))
        started = self._clock()
        try:
            logits = self._runner.run(step)
        except NoRoom as error:  # nothing has changed; the others fit
            self._ending.fail(max(actives, key=lambda active: active.sequence.computed), error)
            return None
        except DeviceFailed as error:
            for active in actives:
                if flight.interrupted and isinstance(error, PassCancelled):
                    self._ending.finish(active, FinishReason.CANCELLED)
                else:
                    self._ending.fail(active, error)
            return None
        finally:
            self._flight = None
        self.losses.over()
        if step.prefill:
            tokens, seconds = len(step.spans[0].tokens), self._clock() - started
            self._pace.measured(tokens, seconds)
            count_ahead(self._tally, actives[0], tokens, seconds)
        return logits

"""A sequence on its way, from its lease to its last token: what it begins with, and what each pass
gives it.
"""

from collections.abc import Callable

from flm.core.event import Event, FinishReason
from flm.core.sequence import Phase
from flm.devices.device import Array
from flm.engine.active import Active
from flm.engine.counting import count_read, count_restored
from flm.engine.ending import Ending
from flm.engine.idle import IdleWork
from flm.errors import DeviceFailed, NoRoom
from flm.memory.lanes import Lanes
from flm.prefix.cache import PrefixCache
from flm.prefix.lease import Lease, Manners
from flm.runner.runner import Runner


class Progress:
    """`events` are the engine's."""

    def __init__(
        self,
        runner: Runner,
        cache: PrefixCache,
        events: list[Event],
        ending: Ending,
        lanes: Lanes,
        idle: IdleWork,
        context_length: int,
        clock: Callable[[], float],
    ) -> None:
        self._runner = runner
        self._cache = cache
        self._events = events
        self._lanes = lanes
        self._idle = idle
        self._ending = ending
        self._context_length = context_length
        self._clock = clock

    def begin(self, active: Active) -> None:
        lease, sequence = active.lease, active.sequence
        sequence.computed, sequence.cuts, active.kept = lease.offset, lease.cuts, 0
        if not sequence.generated:
            sequence.cached_tokens = lease.offset
            sequence.kind = lease.kind.value if lease.kind else ""
        if lease.offset == sequence.prompt_length:  # read before, to the last token
            assert lease.logits is not None
            self.advance(active, lease.logits)
        elif lease.manners is Manners.MODEST and not lease.pays:
            self._ending.finish(active, FinishReason.LENGTH)

    def advance(self, active: Active, logits: Array) -> None:
        """After a pass, or without one where all was kept."""
        sequence = active.sequence
        if sequence.computed == len(sequence.tokens):
            self._take(active, logits)
        elif sequence.generated and sequence.computed == len(sequence.tokens) - 1:  # read again
            sequence.phase = Phase.DECODE

    def restore(self, active: Active) -> bool:
        """Whether the lane now holds what is computed. Left to here, for the first token of a
        prompt that was read to its end does not need it.
        """
        if active.restored:
            return True
        lease, started = active.lease, self._clock()
        active.begin(started)
        tokens = active.sequence.tokens[: lease.offset]
        try:
            copied = self._runner.restore(active.lane, tokens, lease.snapshots)
        except (NoRoom, DeviceFailed) as error:
            if isinstance(error, NoRoom) or not lease.slot:
                self._ending.fail(active, error)
            else:
                self._cache.warn(f"Prefix cache: a kept prompt cannot be restored: {error}")
                self._lanes.forget(active.lane)
                self._cache.condemn(lease)
                prompt = active.sequence.request.prompt
                self.start_over(active, self._cache.lease(prompt, manners=Manners.BLIND))
            return False
        active.restored = True
        count_restored(self._cache.tally, active, copied, self._clock() - started)
        return True

    def start_over(self, active: Active, lease: Lease) -> None:
        """Tokens that it has generated stay: they are read with its prompt."""
        active.lease, active.restored = lease, False
        active.sequence.phase = Phase.PREFILL
        self.begin(active)

    def _take(self, active: Active, logits: Array) -> None:
        """The next token, if the sampler finds one: else this request fails, and no other."""
        sequence = active.sequence
        if not sequence.generated:
            count_read(self._cache.tally, sequence)
            self._idle.compare(sequence, logits, self._clock())
        if not sequence.request.max_tokens:
            self._ending.finish(active, FinishReason.LENGTH)
            return
        try:
            generated, ended = active.take(logits, self._clock(), self._context_length)
        except Exception as error:  # not numbers, or a bug of ours
            self._ending.fail(active, error)
            return
        if generated:
            self._events.append(generated)
        if ended:
            self._ending.finish(active, ended, active.reply.finish())

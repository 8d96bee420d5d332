"""Requests in, events out, at most one forward pass a step. No thread, and no clock of its own.

Invariants, which `check` asserts:
  * A request waits, or is active in a lane of its own, or is gone. The waiting are in order.
  * An active sequence has `computed` tokens in its lane once it is restored; until then it is
    untouched, and may still take a longer prefix that another has just kept.
  * An active sequence holds an open lease; both end together, and the lane with them.
  * Idle work computes only while nothing else can, and what it has read is there for the others.
"""

from collections.abc import Callable

from flm.core.event import Admitted, Event, Failed, Finished, FinishReason
from flm.core.request import Priority, Request
from flm.core.sequence import Phase, Sequence
from flm.core.step import Step
from flm.devices.device import Array
from flm.engine.active import Active, Flight, usage
from flm.engine.counting import count_ahead, count_read, count_restored, count_wasted
from flm.engine.following import followers, introduce
from flm.engine.idle import IdleWork, keep_so_far
from flm.engine.keeper import Keeper
from flm.engine.reply import ReplyText
from flm.engine.sampler import Sample, Sampler
from flm.engine.scheduler import Pace, schedule
from flm.engine.valid import validate
from flm.engine.waiting import Waiting
from flm.errors import DeviceFailed, DeviceLost, NoRoom, PassCancelled, QueueFull
from flm.memory.lanes import Lanes
from flm.prefix.cache import PrefixCache
from flm.prefix.fetch import Fetch
from flm.prefix.lease import Lease, Manners
from flm.prefix.tally import WAITS
from flm.runner.runner import Runner
from flm.text.tokenizer import Tokenizer


class Engine:
    """Every method is for one thread, but `validate` and `interrupt`, which are for any."""

    def __init__(
        self,
        runner: Runner,
        cache: PrefixCache,
        tokenizer: Tokenizer,
        *,
        lanes: Lanes,
        context_length: int,
        queue_max: int,
        chunk_len_max: int,
        chunk_s_target: float,
        clock: Callable[[], float],
        sampler_for: Callable[[Request], Sample] = Sampler,
        audit_every: int = 0,
    ) -> None:
        self.cache = cache
        self._runner = runner
        self._tokenizer = tokenizer
        self._lanes = lanes
        self._context_length = context_length
        self._queue_max = queue_max
        self._clock = clock
        self._sampler_for = sampler_for
        self._pace = Pace(chunk_s_target, chunk_len_max)
        self._admitted = 0  # since the last pass, which they do not hold up for long
        self._decode_is_due = False
        self._waiting = Waiting(cache)
        self._idle = IdleWork(cache, audit_every=audit_every)
        self._active: dict[str, Active] = {}  # by request id, oldest first
        self._keeper = Keeper(cache, runner, self._active)
        self._at_work: tuple[str, ...] = ()  # whose fault an exception is
        self._flight: Flight | None = None
        self._events: list[Event] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._active)

    @property
    def busy(self) -> bool:
        """Whether a step would do something: not while all there is waits for the disk."""
        return self.pressed or bool(self._idle)

    @property
    def pressed(self) -> bool:
        """The same, of idle work only what is under way."""
        return bool(self._waiting.ready or self._active or self._events)

    @property
    def room(self) -> int:
        """How many more requests `submit` takes."""
        idle = sum(active.idle for active in list(self._active.values()))  # it gives way
        return self._queue_max + self._lanes.free + idle - len(self._waiting)

    def queue_full(self) -> QueueFull:
        return QueueFull(
            f"{self._queue_max} requests are waiting already",
            fix="send it again in a moment, or start with a larger --q-len",
        )

    def validate(self, request: Request) -> None:
        """Raises BadRequest or PromptTooLong for what no engine of this size could run."""
        validate(request, self._context_length, self._tokenizer.vocabulary)

    def submit(self, request: Request) -> None:
        """Raises QueueFull, and what `validate` raises."""
        self.validate(request)
        assert request.id not in self._active, f"{request.id} twice"
        sequence = Sequence(request, submitted_at=self._clock())
        if request.priority is Priority.IDLE:
            if dropped := self._idle.add(sequence):
                self._end(dropped, FinishReason.CANCELLED)
            return
        if self.room <= 0:
            raise self.queue_full()
        self._waiting.add(sequence, self._pace.tokens_per_s)

    def cancel(self, request_id: str) -> None:
        """Its lane is free from here on; unknown or finished is no error."""
        if active := self._active.get(request_id):
            self._finish(active, FinishReason.CANCELLED)
        elif sequence := self._waiting.remove(request_id) or self._idle.cancel(request_id):
            self._end(sequence, FinishReason.CANCELLED)

    def interrupt(self, request_id: str) -> None:
        """From any thread, before `cancel`: end the running pass if it is for nobody else."""
        flight = self._flight
        if flight is not None and flight.request_ids == (request_id,):
            flight.interrupted = True
            self._runner.cancel(flight.step)

    def step(self) -> list[Event]:
        """Admit a request, or else run a pass: what happened is not held up by a pass."""
        try:
            if not self._events:
                self._admit()
            if not self._events:
                self._pass()
        except DeviceLost as error:
            self._resume(error)
        self._at_work = ()
        self.cache.spill()
        events, self._events = self._events, []
        return events

    def abandon(self, error: Exception) -> None:
        """After `step` raised, which is a bug of ours: fail those it was at work for, or all."""
        waiting = (sequence.request.id for sequence in self._waiting)
        blamed = self._at_work or (*self._active, *waiting)
        self._at_work = ()
        for request_id in blamed:
            if active := self._active.get(request_id):
                self._fail(active, error)
            elif self._waiting.remove(request_id):
                self._events.append(Failed(request_id, error))

    def clear(self, domain: str) -> int:
        """Forget what is kept, and what was to be read for nobody; how many snapshots that were."""
        for sequence in self._idle.of(domain):
            self._end(sequence, FinishReason.CANCELLED)
        return self.cache.clear(domain)

    def check(self) -> None:
        self._waiting.check()
        assert len(self._waiting) <= self._queue_max + len(self._lanes)
        busy = [index for index in range(len(self._lanes)) if self._lanes[index].busy]
        assert sorted(active.lane for active in self._active.values()) == busy, "a sequence a lane"
        for active in self._active.values():
            active.check(self._lanes[active.lane])
        self._idle.check()
        self._lanes.check()
        self.cache.check()

    def _admit(self) -> None:
        if not self._waiting.ready:
            if self._idle and not self._active:
                self._start(self._idle.take(), None)
            return
        if self._admitted == len(self._lanes):
            return
        self._give_way()
        if self._lanes.free and (ready := self._waiting.take()):
            self._admitted += 1
            self._start(*ready)

    def _give_way(self) -> None:
        """What idle work has read so far is kept, and it goes on another time."""
        for active in list(self._active.values()):
            if active.idle and (active.sequence.request.reuse or not self._lanes.free):
                keep_so_far(active, self._runner)
                self._leave(active)
                self._idle.put_back(active.sequence)

    def _start(self, sequence: Sequence, fetch: Fetch | None) -> None:
        request = sequence.request
        self._at_work = (request.id,)
        for overtaken in self._idle.overtaken(request):
            self._end(overtaken, FinishReason.CANCELLED)
        try:
            for behind in self._keeper.keep_for(request):
                self._start_from_lease(behind)
            landed = fetch is not None and fetch.land()
            reply, sample = ReplyText(request, self._tokenizer), self._sampler_for(request)
            lease = self._keeper.lease(request)
        except Exception:
            self._waiting.put_first(sequence)
            raise
        finally:
            if fetch:
                fetch.close()
        lane = self._lanes.acquire(request.prompt.tokens)
        assert lane is not None
        sequence.lane, sequence.phase = lane, Phase.PREFILL
        active = Active(sequence, lane, lease, sample, reply)
        sequence.tier = "disk" if landed else "host"
        waits = introduce(active, self._active.values(), self.cache.gain_min)
        self.cache.tally.add(WAITS, by=int(waits))
        self._active[request.id] = active
        self._events.append(Admitted(request.id, lease.offset, lease.finding))
        self._start_from_lease(active)

    def _start_from_lease(self, active: Active) -> None:
        lease, sequence = active.lease, active.sequence
        sequence.computed, sequence.cuts, active.kept = lease.offset, lease.cuts, 0
        if not sequence.generated:
            sequence.cached_tokens = lease.offset
            sequence.kind = lease.kind.value if lease.kind else ""
        if lease.offset == sequence.prompt_length:  # read before, to the last token
            assert lease.logits is not None
            self._advance(active, lease.logits)
        elif lease.manners is Manners.MODEST and not lease.pays:
            self._finish(active, FinishReason.LENGTH)

    def _pass(self) -> None:
        self._admitted = 0
        ready = self._ready()
        alone, idle = len(ready) == 1 and not self._waiting, any(active.idle for active in ready)
        step = schedule(
            (active.sequence for active in ready),
            chunk_len=self._pace.chunk_len_of(alone=alone, idle=idle),
            chunks_run=self._pace.chunks_run,
            decode_is_due=self._decode_is_due,
            first_min=self._lanes.layout.first_min,
        )
        if step is None:
            return
        by_lane = {active.lane: active for active in self._active.values()}
        actives = [by_lane[span.lane] for span in step.spans]
        self._at_work = tuple(active.id for active in actives)
        if not all(self._restore(active) for active in actives):
            return
        if (logits := self._run(step, actives)) is None:
            return
        self._decode_is_due = step.prefill
        for active, span in zip(actives, step.spans, strict=True):
            active.sequence.computed = span.end
            try:
                if step.prefill:
                    for behind in self._keeper.keep(active, logits[span.lane]):
                        self._start_from_lease(behind)
            except DeviceLost:
                raise
            except Exception as error:  # of the device, or a bug of ours: the others go on
                self._fail(active, error)
            else:
                self._advance(active, logits[span.lane])

    def _advance(self, active: Active, logits: Array) -> None:
        """After a pass, or without one where all was kept."""
        sequence = active.sequence
        if sequence.computed == len(sequence.tokens):
            self._take(active, logits)
        elif sequence.generated and sequence.computed == len(sequence.tokens) - 1:  # read again
            sequence.phase = Phase.DECODE

    def _ready(self) -> list[Active]:
        """Those that can use a pass, oldest first: idle ones if no other is there."""
        wanted = [active for active in self._active.values() if not active.idle]
        wanted = wanted or list(self._active.values())
        waiting = followers(wanted, self.cache.gain_min)
        return [active for active in wanted if active not in waiting]

    def _restore(self, active: Active) -> bool:
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
                self._fail(active, error)
            else:
                self.cache.warn(f"Prefix cache: a kept prompt cannot be restored: {error}")
                self._lanes.forget(active.lane)
                self.cache.condemn(lease)
                prompt = active.sequence.request.prompt
                self._start_over(active, self.cache.lease(prompt, manners=Manners.BLIND))
            return False
        active.restored = True
        count_restored(self.cache.tally, active, copied, self._clock() - started)
        return True

    def _start_over(self, active: Active, lease: Lease) -> None:
        """Tokens that it has generated stay: they are read with its prompt."""
        active.lease, active.restored = lease, False
        active.sequence.phase = Phase.PREFILL
        self._start_from_lease(active)

    def _resume(self, lost: DeviceLost) -> None:
        """What lanes held is gone. All go on from what is kept, but whoever would lose it again."""
        for lane in range(len(self._lanes)):
            self._lanes.forget(lane)
        for active in list(self._active.values()):
            at_work = active.id in self._at_work
            active.losses += at_work
            if at_work and active.losses >= lost.losses_max:
                self._fail(active, lost)
            elif active.idle:
                self._finish(active, FinishReason.CANCELLED)
            elif active.restored:
                self._start_over(active, self._keeper.lease_anew(active))
        self.cache.warn(f"{lost.message}. Requests that go on from what is kept: {self.running}")

    def _run(self, step: Step, actives: list[Active]) -> dict[int, Array] | None:
        """Logits by lane, or None if some or all of `actives` had to go."""
        self._flight = flight = Flight(step, self._at_work)
        started = self._clock()
        try:
            logits = self._runner.run(step)
        except NoRoom as error:  # nothing has changed; the others fit
            self._fail(max(actives, key=lambda active: active.sequence.computed), error)
            return None
        except DeviceFailed as error:
            for active in actives:
                if flight.interrupted and isinstance(error, PassCancelled):
                    self._finish(active, FinishReason.CANCELLED)
                else:
                    self._fail(active, error)
            return None
        finally:
            self._flight = None
        if step.prefill:
            tokens, seconds = len(step.spans[0].tokens), self._clock() - started
            self._pace.measured(tokens, seconds)
            count_ahead(self.cache.tally, actives[0], tokens, seconds)
        return logits

    def _take(self, active: Active, logits: Array) -> None:
        """The next token, if the sampler finds one: else this request fails, and no other."""
        sequence = active.sequence
        if not sequence.generated:
            count_read(self.cache.tally, sequence)
            self._idle.compare(sequence, logits, self._clock())
        if not sequence.request.max_tokens:
            self._finish(active, FinishReason.LENGTH)
            return
        try:
            generated, ended = active.take(logits, self._clock(), self._context_length)
        except Exception as error:  # not numbers, or a bug of ours
            self._fail(active, error)
            return
        if generated:
            self._events.append(generated)
        if ended:
            self._finish(active, ended, active.reply.finish())

    def _finish(self, active: Active, reason: FinishReason, text: str = "") -> None:
        if reason is FinishReason.CANCELLED:
            active.lease.note_cancelled(active.sequence.computed)
        self._leave(active)
        self._idle.forget(active.id)
        self._end(active.sequence, reason, text)

    def _end(self, sequence: Sequence, reason: FinishReason, text: str = "") -> None:
        sequence.phase = Phase.FINISHED
        spent = usage(sequence, self._clock())
        self._events.append(Finished(sequence.request.id, reason, spent, text))

    def _fail(self, active: Active, error: Exception) -> None:
        self._lanes.forget(active.lane)
        self._leave(active)
        self._idle.forget(active.id)
        self._events.append(Failed(active.id, error))

    def _leave(self, active: Active) -> None:
        count_wasted(self.cache.tally, active)
        del self._active[active.id]
        active.sequence.phase = Phase.FINISHED
        self._lanes.release(active.lane)
        active.lease.close()

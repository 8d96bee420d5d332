"""Requests in, events out, at most one forward pass a step. No thread, and no clock of its own.

Invariants, which `check` asserts:
  * A request waits, or is active in a lane of its own, or is parked, or is gone.
  * An active sequence has `computed` tokens in its lane once it is restored; until then it is
    untouched, and may still take a longer prefix that another has just kept.
  * An active or parked sequence holds an open lease; both end together, and the lane with them.
  * Idle work computes only while nothing else can, and what it has read is there for the others.
"""

from collections import Counter
from collections.abc import Callable
from itertools import count

from flm.core.event import Admitted, Event, Failed, FinishReason
from flm.core.request import Priority, Request
from flm.core.sequence import Phase, Sequence
from flm.engine.active import Active
from flm.engine.counting import Losses
from flm.engine.ending import Ending
from flm.engine.following import followers, introduce
from flm.engine.idle import IdleWork, keep_so_far
from flm.engine.keeper import Keeper
from flm.engine.parking import Parking
from flm.engine.passes import Passes
from flm.engine.precedence import Precedence, urgent
from flm.engine.progress import Progress
from flm.engine.reply import ReplyText
from flm.engine.sampler import Sample, Sampler
from flm.engine.scheduler import Pace, Rota, schedule
from flm.engine.valid import queue_full, validate
from flm.engine.waiting import Waiting
from flm.errors import DeviceFailed, DeviceLost, QueueFull
from flm.memory.lanes import Lanes
from flm.memory.parked import Parked
from flm.prefix.cache import PrefixCache
from flm.prefix.fetch import Fetch
from flm.prefix.tally import PARKED, WAITS
from flm.runner.encodings import Encodings
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
        parked: Parked | None = None,
        encodings: Encodings | None = None,
    ) -> None:
        self.cache, self.encodings = cache, encodings
        self._runner = runner
        self._tokenizer = tokenizer
        self._lanes = lanes
        self._context_length = context_length
        self._queue_max = queue_max
        self._clock = clock
        self._sampler_for = sampler_for
        self._pace, self._rota = Pace(chunk_s_target, chunk_len_max), Rota()
        self._admitted = 0  # since the last pass, which they do not hold up for long
        self._decode_is_due = False
        self._waiting = Waiting(cache, encodings)
        self._numbers = count(1)
        self.parking = Parking(runner, lanes, parked or Parked(lanes.layout))
        self._idle = IdleWork(cache, audit_every=audit_every)
        self._active: dict[str, Active] = {}  # by request id, oldest first
        self._keeper = Keeper(cache, runner, self._active)
        self._precedence = Precedence(cache, self._active)
        self._at_work: tuple[str, ...] = ()  # whose fault an exception is
        self._events: list[Event] = []
        self._ending = Ending(
            self._active, self._events, lanes, self.parking, self._idle, cache.tally, clock
        )
        self._passes = Passes(runner, self._pace, self._ending, cache.tally, clock)
        self._progress = Progress(
            runner, cache, self._events, self._ending, lanes, self._idle, context_length, clock
        )

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._active)

    @property
    def standing(self) -> Counter[tuple[str, Priority]]:
        """How many requests of each class wait, run and are parked; for any thread."""
        waiting, running = list(self._waiting), list(self._active.values())
        counts = Counter(("waiting", each.request.priority) for each in waiting)
        counts.update(("running", each.sequence.request.priority) for each in running)
        counts.update(("parked", each.sequence.request.priority) for each in self.parking)
        return counts

    @property
    def losses(self) -> Losses:
        return self._passes.losses

    @property
    def busy(self) -> bool:
        """Whether a step would do something: not while all waits for the disk or a tower."""
        return self.pressed or bool(self._idle)

    @property
    def pressed(self) -> bool:
        """The same, of idle work only what is under way."""
        return bool(self._waiting.ready or self._active or self.parking or self._events)

    @property
    def room(self) -> int:
        """How many more requests `submit` takes."""
        idle = sum(active.idle for active in list(self._active.values()))  # it gives way
        lanes = max(0, self._lanes.free + idle - self.parking.laneless)
        return max(0, self._queue_max + lanes - len(self._waiting))

    def queue_full(self) -> QueueFull:
        lane_s = self._ending.lane_s
        return queue_full(self._queue_max, None if lane_s is None else lane_s / len(self._lanes))

    def validate(self, request: Request) -> None:
        """Before `submit`, once. Raises BadRequest or PromptTooLong for what no engine of this size
        could run.
        """
        validate(request, self._context_length, self._tokenizer.vocabulary)

    def submit(self, request: Request) -> None:
        """What `validate` lets through. Raises QueueFull."""
        assert request.id not in self._active, f"{request.id} twice"
        sequence = Sequence(request, self._clock(), number=next(self._numbers))
        if request.priority is Priority.IDLE:
            if dropped := self._idle.add(sequence):
                self._ending.say(dropped, FinishReason.CANCELLED)
            return
        if not self.room:
            raise self.queue_full()
        self._waiting.add(sequence, self._pace.tokens_per_s)

    def cancel(self, request_id: str) -> None:
        """Its lane is free from here on; unknown or finished is no error."""
        if active := self._find(request_id):
            self._ending.finish(active, FinishReason.CANCELLED)
        elif sequence := self._waiting.remove(request_id) or self._idle.cancel(request_id):
            self._ending.say(sequence, FinishReason.CANCELLED)

    def interrupt(self, request_id: str) -> None:
        """From any thread, before `cancel`: end the running pass if it is for nobody else."""
        self._passes.interrupt(request_id)

    def step(self) -> list[Event]:
        """Admit a request, or else run a pass: what happened is not held up by a pass. Beside it, a
        window of the lane that is given up, or of that which comes back.
        """
        try:
            if not self._events:
                self._admit()
            if not self._events:
                self._move()
            if not self._events:
                self._pass()
        except DeviceLost as error:
            self._resume(error)
        self._at_work = ()
        self.cache.spill()
        events = self._events.copy()
        self._events.clear()
        return events

    def abandon(self, error: Exception) -> None:
        """After `step` raised, which is a bug of ours: fail those it was at work for, or all."""
        waiting = (sequence.request.id for sequence in self._waiting)
        parked = (active.id for active in self.parking)
        blamed = self._at_work or (*self._active, *parked, *waiting)
        self._at_work = ()
        for request_id in blamed:
            if active := self._find(request_id):
                self._ending.fail(active, error)
            elif self._waiting.remove(request_id):
                self._events.append(Failed(request_id, error))

    def clear(self, domain: str) -> int:
        """Forget what is kept, and what was to be read for nobody; how many snapshots that were."""
        for sequence in self._idle.of(domain):
            self._ending.say(sequence, FinishReason.CANCELLED)
        return self.cache.clear(domain)

    def check(self) -> None:
        self._waiting.check()
        assert len(self._waiting) <= self._queue_max + len(self._lanes)
        busy = [index for index in range(len(self._lanes)) if self._lanes[index].busy]
        lent = [active.lane for active in self._active.values()]
        lent += [self.parking.returning.lane] if self.parking.returning else []
        assert sorted(lent) == busy, "a sequence a lane"
        for active in self._active.values():
            active.check(self._lanes[active.lane], self.cache.grid)
        self.parking.check()
        self._idle.check()
        self._lanes.check()
        self.cache.check()

    def _find(self, request_id: str) -> Active | None:
        """Of those that have begun."""
        return self._active.get(request_id) or self.parking.find(request_id)

    def _admit(self) -> None:
        candidates = self._waiting.ready + self.parking.ready
        if not candidates:
            if self._idle and not self._active and not self.parking:
                idle = self._idle.take()
                self._start(idle, None, self._lanes.acquire(idle.tokens))
            return
        if self._admitted == len(self._lanes):
            return
        self._give_way()
        if self._lanes.free:
            self._lend(candidates, others=candidates)
        elif not self.parking.leaving and (persons := list(filter(urgent, candidates))):
            if (lane := self.parking.turn_back()) is not None:
                self._lanes.release(lane)
                self._lend(persons, others=[])
            else:
                self.parking.begin(self._active.values(), self._ready()[1])

    def _lend(self, candidates: list[Sequence], others: list[Sequence]) -> None:
        """A free lane to the next of `candidates`, which `others` could have had."""
        sequence = self._precedence.next(candidates)
        self._precedence.note(sequence, others)
        self._admitted += 1
        lane = self._lanes.acquire(sequence.tokens)  # first, or `room` would say too much meanwhile
        if sequence.phase is Phase.WAITING:
            self._start(sequence, self._waiting.take(sequence), lane)
            return
        assert lane is not None
        active, loading = self.parking.bring(sequence, lane)
        if not loading:
            self._come_back(active)

    def _move(self) -> None:
        parking = self.parking
        if leaving := parking.leaving:
            persons = [each for each in self._waiting.ready if urgent(each)]
            if self._lanes.free or not persons:
                parking.call_off()
                return
            self._at_work = (leaving.id,)
            try:
                left = parking.save()
            except DeviceFailed:
                parking.call_off()
                self._lanes.forget(leaving.lane)
                self._progress.start_over(leaving, self._keeper.lease_anew(leaving))
                return
            if left:
                del self._active[leaving.id]
                self._lanes.release(leaving.lane)
                self.cache.tally.add(PARKED)
                self._lend(persons, others=[])
        elif returning := parking.returning:
            self._at_work = (returning.id,)
            try:
                if parking.load():
                    self._active[returning.id] = returning
            except (DeviceFailed, OSError):
                parking.forget(returning)
                self._lanes.forget(returning.lane)
                self._come_back(returning)

    def _come_back(self, active: Active) -> None:
        """With nothing but what is kept of it."""
        self._active[active.id] = active
        introduce(active, self._active.values(), self.cache.gain_min)
        self._progress.start_over(active, self._keeper.lease_anew(active))

    def _give_way(self) -> None:
        """What idle work has read so far is kept, and it goes on another time."""
        for active in list(self._active.values()):
            if active.idle and (active.sequence.request.reuse or not self._lanes.free):
                keep_so_far(active, self._runner)
                self._ending.leave(active)
                self._idle.put_back(active.sequence)

    def _start(self, sequence: Sequence, fetch: Fetch | None, lane: int | None) -> None:
        request = sequence.request
        assert lane is not None
        self._at_work = (request.id,)
        for overtaken in self._idle.overtaken(request):
            self._ending.say(overtaken, FinishReason.CANCELLED)
        try:
            for behind in self._keeper.keep_for(request):
                self._progress.begin(behind)
            landed = fetch is not None and fetch.land()
            reply, sample = ReplyText(request, self._tokenizer), self._sampler_for(request)
            lease = self._keeper.lease(request)
        except Exception:
            self._waiting.put_first(sequence)
            self._lanes.release(lane)
            raise
        finally:
            if fetch:
                fetch.close()
        sequence.lane, sequence.phase = lane, Phase.PREFILL
        active = Active(sequence, lane, lease, sample, reply)
        sequence.tier = "disk" if landed else "host"
        waits = introduce(active, self._active.values(), self.cache.gain_min)
        self.cache.tally.add(WAITS, by=int(waits))
        self._active[request.id] = active
        self._events.append(Admitted(request.id, lease.offset, lease.finding))
        self._progress.begin(active)

    def _pass(self) -> None:
        self._admitted = 0
        ready, led = self._ready()
        alone = len(ready) == 1 and not self._waiting and not self.parking
        pressing = led.union(active for active in ready if urgent(active.sequence))
        step = schedule(
            (active.sequence for active in ready),
            chunk_len=self._pace.chunk_len_of(alone=alone, idle=any(a.idle for a in ready)),
            rota=self._rota,
            urgent={active.sequence for active in pressing},
            decode_is_due=self._decode_is_due,
            first_min=self._lanes.layout.first_min,
            grid=self._runner.grid,
            whole=self._runner.whole,
        )
        if step is None:
            return
        by_lane = {active.lane: active for active in self._active.values()}
        actives = [by_lane[span.lane] for span in step.spans]
        self._at_work = tuple(active.id for active in actives)
        if not all(self._progress.restore(active) for active in actives):
            return
        if (logits := self._passes.run(step, actives)) is None:
            return
        self._decode_is_due = step.prefill
        if step.prefill:
            self._rota.note(urgent=actives[0] in pressing)
        for active, span in zip(actives, step.spans, strict=True):
            active.sequence.computed = span.end
            active.sequence.grace = 0 if step.prefill else max(0, active.sequence.grace - 1)
            try:
                if step.prefill:
                    for behind in self._keeper.keep(active, logits[span.lane]):
                        self._progress.begin(behind)
            except DeviceLost:
                raise
            except Exception as error:  # of the device, or a bug of ours: the others go on
                self._ending.fail(active, error)
            else:
                self._progress.advance(active, logits[span.lane])

    def _ready(self) -> tuple[list[Active], set[Active]]:
        """Those that can use a pass, oldest first, and those of them that read what a person waits
        for. Idle ones if no other is there; and while a lane is given up to a person, nobody reads
        before that person does.
        """
        wanted = [active for active in self._active.values() if not active.idle]
        wanted = wanted or list(self._active.values())
        follows = followers(wanted, self.cache.gain_min)
        ready = [active for active in wanted if active not in follows]
        if leaving := self.parking.leaving:
            decodes = (each for each in ready if each.sequence.phase is Phase.DECODE)
            ready = [active for active in decodes if active is not leaving]
        return ready, {lead for each, lead in follows.items() if urgent(each.sequence)}

    def _resume(self, lost: DeviceLost) -> None:
        """What lanes held is gone. All go on from what is kept, but whoever would lose it again."""
        for lane in range(len(self._lanes)):
            self._lanes.forget(lane)
        self.parking.call_off()
        returning = self.parking.returning  # it begins to come back once more
        for active in [*self._active.values(), *([returning] if returning else [])]:
            at_work = active.id in self._at_work
            active.losses += at_work
            if at_work and active.losses >= lost.losses_max:
                self._ending.fail(active, lost)
            elif active.idle:
                self._ending.finish(active, FinishReason.CANCELLED)
            elif active.restored and active is not returning:
                self._progress.start_over(active, self._keeper.lease_anew(active))
        self.cache.warn(self._passes.losses.note(lost, self.running))

"""Work that nobody waits for: prompts to read ahead or to warm, and reused ones to read again.

It runs while nothing else does, one prompt at a time, and gives way within a chunk.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from flm.core.prompt import Boundary, BoundaryKind
from flm.core.request import Priority, Request
from flm.core.sequence import Phase, Sequence
from flm.devices.device import Array
from flm.engine.active import Active
from flm.engine.following import shared_length
from flm.errors import DeviceFailed
from flm.prefix.cache import PrefixCache
from flm.prefix.lease import Manners
from flm.prefix.tally import AUDITS
from flm.runner.runner import Runner

IDLE_MAX = 64  # that wait; the oldest goes for the newest
AUDITS_MAX = 4  # each holds a row of logits


class IdleWork:
    """`audit_every` N: of the prompts that were reused, one in N is read again; 0: none."""

    def __init__(self, cache: PrefixCache, *, audit_every: int = 0) -> None:
        self._cache = cache
        self._waiting: deque[Sequence] = deque()
        self._audit_every = audit_every
        self._reused = 0
        self._expected: dict[str, Array] = {}  # logits by the audit's request id

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence) -> Sequence | None:
        """Gives the one that had to go for it."""
        self._waiting.append(sequence)
        return self._pop() if len(self._waiting) > IDLE_MAX else None

    def take(self) -> Sequence:
        return self._waiting.popleft()

    def put_back(self, sequence: Sequence) -> None:
        """It lost its lane, and starts again later."""
        fresh = Sequence(sequence.request, sequence.submitted_at)
        self._waiting.appendleft(fresh)

    def overtaken(self, request: Request) -> list[Sequence]:
        """Those that `request` goes on from, which reads them therefore. They are taken out."""
        return self._take_out(lambda idle: _goes_on(request, idle))

    def of(self, domain: str) -> list[Sequence]:
        """Those of a domain that has nothing to keep any more. They are taken out."""
        return self._take_out(lambda idle: idle.prompt.domain == domain)

    def forget(self, request_id: str) -> None:
        """It ended: there will be nothing to compare."""
        self._expected.pop(request_id, None)

    def cancel(self, request_id: str) -> Sequence | None:
        self.forget(request_id)
        return next(iter(self._take_out(lambda idle: idle.id == request_id)), None)

    def compare(self, sequence: Sequence, logits: Array, now: float) -> None:
        """A prompt is through, with these logits [vocabulary] of its last token. If it was reused
        it may be one to read again; if it is such a one, they must be those of then.
        """
        request = sequence.request
        expected = self._expected.pop(request.id, None)
        if expected is not None:
            alike = expected.tobytes() == logits.tobytes()
            self._cache.tally.add(AUDITS, "equal" if alike else "different")
            if not alike:
                self._cache.warn(f"Prefix cache: read again, {request.id} gives other logits")
        elif sequence.cached_tokens and request.priority is not Priority.IDLE:
            self._audit(request, logits, now)

    def _audit(self, request: Request, logits: Array, now: float) -> None:
        full = len(self._expected) >= AUDITS_MAX or len(self._waiting) >= IDLE_MAX
        if full or not self._audit_every:  # an audit pushes nothing out
            return
        self._reused += 1
        if self._reused % self._audit_every == 0:
            audit = replace(
                request, id=f"{request.id}-audit", max_tokens=0, priority=Priority.IDLE, reuse=False
            )
            self._expected[audit.id] = logits.copy()
            self.add(Sequence(audit, submitted_at=now))

    def check(self) -> None:
        assert len(self._waiting) <= IDLE_MAX + 1  # one may have been put back
        assert all(each.phase is Phase.WAITING for each in self._waiting)
        assert all(each.request.priority is Priority.IDLE for each in self._waiting)

    def _pop(self) -> Sequence:
        dropped = self._waiting.popleft()
        self.forget(dropped.request.id)
        return dropped

    def _take_out(self, meant: Callable[[Request], bool]) -> list[Sequence]:
        found = [each for each in self._waiting if meant(each.request)]
        for sequence in found:
            self._waiting.remove(sequence)
        return found


def keep_so_far(active: Active, runner: Runner) -> None:
    """What was read of a prompt to keep is kept, however little: who comes now has waited for it,
    and may go on from there. As an end, for whatever is kept further down outgrows that.
    """
    lease, offset = active.lease, active.sequence.computed
    if lease.manners is Manners.MODEST and offset > lease.kept_to:
        with suppress(DeviceFailed):  # which its next pass will tell
            end = Boundary(offset, BoundaryKind.END)
            lease.keep(end, partial(runner.save, active.lane))


def _goes_on(request: Request, idle: Request) -> bool:
    """Whether `request` begins with all of a prompt that is read for the sake of such as it."""
    length = len(idle.prompt.tokens)
    own = len(request.prompt.tokens) > length and request.reuse and idle.reuse
    return own and shared_length(request.prompt, idle.prompt) == length

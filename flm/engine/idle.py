"""Work that nobody waits for: prompts to read ahead or to warm, and reused ones to read again.

It runs while nothing else does, one prompt at a time, and gives way within a chunk.
"""

from collections import deque
from dataclasses import replace

from flm.core.request import Priority, Request
from flm.core.sequence import Phase, Sequence
from flm.devices.device import Array

IDLE_MAX = 64  # that wait; the oldest goes for the newest
AUDITS_MAX = 4  # each holds a row of logits


class IdleWork:
    """`audit_every` N: of the prompts that were reused, one in N is read again; 0: none."""

    def __init__(self, *, audit_every: int = 0) -> None:
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

    def cancel(self, request_id: str) -> Sequence | None:
        found = next((each for each in self._waiting if each.request.id == request_id), None)
        if found:
            self._waiting.remove(found)
        self._expected.pop(request_id, None)
        return found

    def audit(self, request: Request, logits: Array, now: float) -> None:
        """A prompt that was reused gave these logits; it may be one of those to read again."""
        if not self._audit_every or len(self._expected) >= AUDITS_MAX:
            return
        self._reused += 1
        if self._reused % self._audit_every:
            return
        audit = replace(
            request, id=f"{request.id}-audit", max_tokens=0, priority=Priority.IDLE, reuse=False
        )
        self._expected[audit.id] = logits.copy()
        dropped = self.add(Sequence(audit, submitted_at=now))
        assert dropped is None or dropped.request.id != audit.id

    def audited(self, request_id: str, logits: Array) -> bool | None:
        """Whether the logits read now are those of then, bit for bit; None: no audit."""
        expected = self._expected.pop(request_id, None)
        return None if expected is None else expected.tobytes() == logits.tobytes()

    def check(self) -> None:
        assert len(self._waiting) <= IDLE_MAX
        assert all(each.phase is Phase.WAITING for each in self._waiting)
        assert all(each.request.priority is Priority.IDLE for each in self._waiting)

    def _pop(self) -> Sequence:
        dropped = self._waiting.popleft()
        self._expected.pop(dropped.request.id, None)
        return dropped

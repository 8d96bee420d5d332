"""What the engine knows of a sequence in a lane, and of time spent."""

from dataclasses import dataclass, field

from flm.core.event import FinishReason, Generated, Usage
from flm.core.request import Priority
from flm.core.sequence import Phase, Sequence
from flm.devices.device import Array
from flm.engine.logits import report
from flm.engine.reply import ReplyText
from flm.engine.sampler import Sample
from flm.memory.lanes import Lane
from flm.prefix.lease import Lease


@dataclass(eq=False, slots=True)
class Active:
    """A sequence in a lane, with what it needs on its way."""

    sequence: Sequence
    lane: int
    lease: Lease
    sample: Sample
    reply: ReplyText
    restored: bool = False
    shared: dict[str, int] = field(default_factory=dict)  # tokens in common, by request id
    kept: int = 0  # how many of the lease's boundaries were seen to
    losses: int = 0  # passes since its newest token that the device did not outlive

    @property
    def id(self) -> str:
        return self.sequence.request.id

    @property
    def idle(self) -> bool:
        return self.sequence.request.priority is Priority.IDLE

    def begin(self, now: float) -> None:
        """A pass comes; one that was read before has its first token without."""
        if self.sequence.began_at is None and not self.sequence.generated:
            self.sequence.began_at = now

    def take(
        self, logits: Array, now: float, context_length: int
    ) -> tuple[Generated | None, FinishReason | None]:
        """The next token, unless it is one that ends the reply; and why that ends, if it does."""
        sequence, request = self.sequence, self.sequence.request
        token = self.sample(sequence.tokens, logits)
        ended = self.reply.ends_with(token)
        text, stopped = ("", False) if ended else self.reply.add(token)
        reported = report(logits, token, request.sampling)
        self.losses = 0
        sequence.tokens.append(token)
        sequence.phase, sequence.last_token_at = Phase.DECODE, now
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        if ended:
            return None, FinishReason.STOP
        generated = Generated(request.id, token, text, *reported, stop=self.reply.stop)
        if stopped:
            return generated, FinishReason.STOP_STRING
        most = min(request.max_tokens, context_length - sequence.prompt_length)
        return generated, FinishReason.LENGTH if sequence.generated >= most else None

    def check(self, lane: Lane, grid: int) -> None:
        """`grid`: its prompt's rows are as any would have them up to a multiple of it."""
        sequence = self.sequence
        length, computed = len(sequence.tokens), sequence.computed
        assert sequence.lane == self.lane
        assert self.lease.offset <= computed
        if self.restored:
            assert lane.rows == computed, f"{lane.rows} rows of {computed} computed"
            read = min(computed, sequence.prompt_length) // grid * grid
            lone = read == 1 and not lane.resident  # read otherwise, so no other may start from it
            assert lone or len(lane.resident) >= read, f"{lane.resident} of {read} read"
            own = sequence.tokens[: len(lane.resident)]  # more than its prompt, if read again
            assert lane.resident == own, "resident tokens are another's"
        if sequence.phase is Phase.PREFILL:
            again = sequence.generated > 1
            assert computed < (length if again else sequence.prompt_length) <= length
        else:
            assert sequence.phase is Phase.DECODE
            assert computed == length - 1 >= sequence.prompt_length


def usage(sequence: Sequence, now: float) -> Usage:
    """What it took so far; what has not come to pass takes until `now`."""
    first = now if sequence.first_token_at is None else sequence.first_token_at
    began = first if sequence.began_at is None else sequence.began_at
    last = first if sequence.last_token_at is None else sequence.last_token_at
    return Usage(
        prompt_tokens=sequence.prompt_length,
        cached_tokens=sequence.cached_tokens,
        completion_tokens=sequence.generated,
        queue_s=began - sequence.submitted_at,
        prefill_s=first - began,
        decode_s=last - first,
        tier=sequence.tier if sequence.cached_tokens else "",
        kind=sequence.kind if sequence.cached_tokens else "",
    )

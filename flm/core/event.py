"""What the engine says about a request: admitted, then tokens, then one ending."""

from dataclasses import dataclass
from enum import Enum

from flm.core.finding import Finding


class FinishReason(Enum):
    STOP = "stop"  # end-of-turn token
    STOP_STRING = "stopped"  # the client's, wherever in the reply it was met
    LENGTH = "length"  # max_tokens, or the context length
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts in tokens, times in seconds. `cached_tokens` were restored, not read.

    They came from `tier` (lane, host or disk), where a boundary of `kind` was kept; "" for none.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_s: float = 0.0  # submit to first pass: for a lane, the disk, or another that reads it
    prefill_s: float = 0.0  # first pass to first token
    decode_s: float = 0.0  # first token to last
    tier: str = ""
    kind: str = ""

    @property
    def read_per_s(self) -> float:
        """Tokens of the prompt a second, those restored left out; 0 where it took no time."""
        read = self.prompt_tokens - self.cached_tokens
        return read / self.prefill_s if self.prefill_s > 0 else 0.0

    @property
    def written_per_s(self) -> float:
        """Tokens of the reply a second, from the first to the last; 0 where it took no time."""
        return (self.completion_tokens - 1) / self.decode_s if self.decode_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """A lane was taken; `cached_tokens` of the prompt need no reading, and why no more."""

    request_id: str
    cached_tokens: int
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class Generated:
    """One new token. `text` is what may be shown now: complete characters, no part of a stop.

    `stop` is the stop string that it completes.
    """

    request_id: str
    token: int
    text: str
    logprob: TokenLogprob | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The last word on a request that ran. `text` is what was held back and is now due."""

    request_id: str
    reason: FinishReason
    usage: Usage
    text: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The last word on a request that could not go on; the others run."""

    request_id: str
    error: Exception


Event = Admitted | Generated | Finished | Failed

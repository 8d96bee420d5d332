"""A request's tokens so far. The one noun that changes, and only the engine changes it.

Invariants:
  * `computed` tokens have memory, in the lane or parked; `computed <= len(tokens)`.
  * No pass crosses one of `cuts`, offsets in the prompt.
  * While decoding, exactly the newest token is not computed.
"""

from dataclasses import dataclass, field
from enum import Enum

from flm.core.request import Request


class Phase(Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Sequence:
    request: Request
    submitted_at: float
    phase: Phase = Phase.WAITING
    lane: int | None = None
    tokens: list[int] = field(default_factory=list)
    cuts: tuple[int, ...] = ()
    computed: int = 0
    cached_tokens: int = 0
    tier: str = ""  # where they came from, and what kind of boundary they end at
    kind: str = ""
    began_at: float | None = None  # its first pass did, if its first token takes one
    first_token_at: float | None = None
    last_token_at: float | None = None
    number: int = 0  # in order of arrival
    passed: int = 0  # times that who came later had a lane before it
    grace: int = 0  # passes for which it keeps its lane, since it was passed so often

    def __post_init__(self) -> None:
        self.tokens.extend(self.request.prompt.tokens)

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt.tokens)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

"""What a client asked, validated, never changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from flm.core.grammar import Grammar
from flm.core.prompt import Prompt


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. The defaults change nothing; temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    penalty_window: int | None = None  # tokens looked back at; None: all of them
    seed: int | None = None  # None: a fresh random stream
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> added logit
    logprobs: int | None = None  # None: none; 0 to 20 alternatives reported with each token


class Priority(Enum):
    """Who waits for the answer: a person, a program, or nobody."""

    INTERACTIVE = "interactive"
    AGENT = "agent"
    IDLE = "idle"  # our own work, done while nothing else waits


@dataclass(frozen=True, slots=True)
class Request:
    """`max_tokens` is already clamped to what the context length leaves; 0: only read the prompt.

    `reuse` False: the prompt is read from its first token, and nothing of it is kept.
    `shown` are special tokens that are part of the reply's text. `grammar`: what that may be; of
    what is kept of the prompt it is no part. Lanes are dealt out fairly between `owner`s.
    """

    id: str
    prompt: Prompt
    sampling: SamplingParams
    max_tokens: int
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    priority: Priority = Priority.INTERACTIVE
    reuse: bool = True
    shown: frozenset[int] = frozenset()
    grammar: Grammar | None = None
    owner: str = ""

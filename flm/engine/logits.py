"""Logits processors, (tokens, logits) -> logits, and logprobs.

A processor may change the array it is given: the sampler hands it a copy of the model's.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from flm.core.event import TokenLogprob
from flm.core.grammar import Matcher
from flm.core.picture import is_picture
from flm.core.request import Request, SamplingParams
from flm.devices.device import Array
from flm.errors import DeviceFailed

Processor = Callable[[Sequence[int], Array], Array]


class Counts:
    """How often each token stands in tokens[start:], or in the last `window` of these.

    It takes in only what changed since it last looked, for prompts are long.
    """

    def __init__(self, start: int, window: int | None) -> None:
        self._window = window
        self._start, self._end = start, start  # [start, end) is counted
        self._counts: Array | None = None  # [vocabulary] float32

    def __call__(self, tokens: Sequence[int], vocabulary: int) -> tuple[Array, Array]:
        """(ids, counts) of the tokens that stand there."""
        if self._counts is None:
            self._counts = np.zeros(vocabulary, np.float32)
        np.add.at(self._counts, _words(tokens[self._end :]), 1)
        self._end = len(tokens)
        if self._window is not None and self._end - self._start > self._window:
            oldest = self._end - self._window
            np.subtract.at(self._counts, _words(tokens[self._start : oldest]), 1)
            self._start = oldest
        ids = np.flatnonzero(self._counts > 0)
        return ids, self._counts[ids]


def _words(tokens: Sequence[int]) -> list[int]:
    return [token for token in tokens if not is_picture(token)]


def bias(added: Mapping[int, float]) -> Processor:
    ids = np.array(list(added.keys()), np.int64)
    values = np.array(list(added.values()), np.float32)

    def process(tokens: Sequence[int], logits: Array) -> Array:
        logits[ids] += values
        return logits

    return process


def repetition_penalty(penalty: float, counts: Counts) -> Processor:
    """Divides positive logits of tokens that occurred, multiplies negative ones (CTRL's rule)."""

    def process(tokens: Sequence[int], logits: Array) -> Array:
        ids, _ = counts(tokens, len(logits))
        found = logits[ids]
        logits[ids] = np.where(found > 0, found / penalty, found * penalty)
        return logits

    return process


def occurrence_penalty(presence: float, frequency: float, counts: Counts) -> Processor:
    """OpenAI's: `presence` off each token that occurred, and `frequency` for each time it did."""

    def process(tokens: Sequence[int], logits: Array) -> Array:
        ids, times = counts(tokens, len(logits))
        logits[ids] -= presence + frequency * times
        return logits

    return process


def held(matcher: Matcher, start: int) -> Processor:
    """Leaves what may come next. It takes in all that the reply has so far, so one that is gone on
    with anew may have a matcher of its own.
    """
    taken = start

    def process(tokens: Sequence[int], logits: Array) -> Array:
        nonlocal taken
        matcher.take(tokens[taken:])
        taken = len(tokens)
        bits = np.frombuffer(matcher.allowed(), np.uint8)
        allowed = np.unpackbits(bits, count=len(logits), bitorder="little")
        np.copyto(logits, -np.inf, where=allowed == 0)
        return logits

    return process


def processors_for(request: Request) -> list[Processor]:
    """Those that do something, in order. The repetition penalty looks at prompt and reply, the
    presence and frequency penalties at the reply alone, as vLLM's do. So does the former where a
    grammar holds the reply: what JSON and calls have to say mostly stands in the prompt.
    """
    sampling, start = request.sampling, len(request.prompt.tokens)
    processors: list[Processor] = []
    if sampling.logit_bias:
        processors.append(bias(sampling.logit_bias))
    if sampling.repetition_penalty != 1.0:
        counts = Counts(start if request.grammar else 0, sampling.penalty_window)
        processors.append(repetition_penalty(sampling.repetition_penalty, counts))
    if sampling.presence_penalty or sampling.frequency_penalty:
        counts = Counts(start, sampling.penalty_window)
        processors.append(
            occurrence_penalty(sampling.presence_penalty, sampling.frequency_penalty, counts)
        )
    if request.grammar:
        processors.append(held(request.grammar.open(), start))
    return processors


def likeliest(logits: Array) -> int:
    """The token of the greatest logit. Raises DeviceFailed on logits that are not numbers."""
    token = int(logits.argmax())  # the first NaN, if there is one
    if not np.isfinite(logits[token]):
        raise DeviceFailed(
            f"the model gave {logits[token]} for token {token}",
            fix="send the request again; if it stays, remove and pull the model anew",
        )
    return token


def report(
    logits: Array, token: int, sampling: SamplingParams
) -> tuple[TokenLogprob | None, tuple[TokenLogprob, ...]]:
    """Logprobs, if asked for, of `token` and of the likeliest tokens, best first.

    They are the model's own: before penalties, bias and temperature.
    """
    if sampling.logprobs is None:
        return None, ()
    greatest = float(logits.max())
    total = greatest + float(np.log(np.exp(logits - greatest).sum(dtype=np.float64)))
    rest = len(logits) - min(sampling.logprobs, len(logits))
    best = np.argpartition(logits, rest)[rest:] if sampling.logprobs else np.arange(0)
    best = best[np.argsort(-logits[best], kind="stable")]
    top = tuple(TokenLogprob(int(each), float(logits[each]) - total) for each in best)
    return TokenLogprob(token, float(logits[token]) - total), top

"""Logits -> token. One sampler a request, with its own random stream: nothing is sticky.

In order: processors (bias, penalties, the grammar), temperature, top-k, top-p of what is left,
min-p.
"""

from collections.abc import Callable, Sequence

import numpy as np

from flm.core.request import Request, SamplingParams
from flm.devices.device import Array
from flm.engine.logits import likeliest, processors_for

SORT_MAX = 256  # tokens; more are halved first

Sample = Callable[[Sequence[int], Array], int]  # (prompt and reply so far, logits) -> token


class Sampler:
    def __init__(self, request: Request) -> None:
        self._sampling = request.sampling
        self._processors = processors_for(request)
        self._random = np.random.default_rng(request.sampling.seed)

    def __call__(self, tokens: Sequence[int], logits: Array) -> int:
        """The next token. `logits` [vocabulary] float32 stay as they are.

        Raises DeviceFailed on logits that are not numbers.
        """
        if self._processors:
            logits = logits.copy()
            for process in self._processors:
                logits = process(tokens, logits)
        best = likeliest(logits)
        if self._sampling.temperature == 0:
            return best
        return draw(logits, float(logits[best]), self._sampling, self._random.random())


def draw(logits: Array, greatest: float, sampling: SamplingParams, uniform: float) -> int:
    """The token at `uniform` in [0, 1) of the distribution that `sampling` leaves."""
    ids = None  # all
    if sampling.top_k is not None and sampling.top_k < len(logits):
        ids = np.argpartition(logits, -sampling.top_k)[-sampling.top_k :]
        logits = logits[ids]
    # Relative to the likeliest token, whose weight is 1.
    weights = np.exp((logits - greatest) / sampling.temperature)
    if sampling.top_p < 1:
        kept = nucleus(weights, sampling.top_p)
        ids, weights = (kept if ids is None else ids[kept]), weights[kept]
    if sampling.min_p > 0:
        kept = np.flatnonzero(weights >= sampling.min_p)
        ids, weights = (kept if ids is None else ids[kept]), weights[kept]
    ladder = np.cumsum(weights, dtype=np.float64)
    rung = min(int(np.searchsorted(ladder, uniform * ladder[-1], side="right")), len(ladder) - 1)
    return rung if ids is None else int(ids[rung])


def nucleus(weights: Array, top_p: float) -> Array:
    """Indices of the fewest likeliest tokens that hold `top_p` of the weight, one at least."""
    total = float(weights.sum(dtype=np.float64))
    needed = top_p * total
    # Tokens each below this share hold less than 1 - top_p together, so none is needed.
    pool = np.flatnonzero(weights >= (1 - top_p) * total / len(weights))
    kept = []
    while len(pool) > SORT_MAX:  # halve: the likelier half is either all in, or all that matters
        half = len(pool) // 2
        order = np.argpartition(weights[pool], half)
        likely, rest = pool[order[half:]], pool[order[:half]]
        mass = float(weights[likely].sum(dtype=np.float64))
        if mass >= needed:
            pool = likely
        else:
            kept.append(likely)
            needed -= mass
            pool = rest
    order = pool[np.argsort(-weights[pool], kind="stable")]
    held = np.cumsum(weights[order], dtype=np.float64)
    count = int(np.searchsorted(held, needed, side="left")) + 1
    return np.concatenate([*kept, order[:count]])

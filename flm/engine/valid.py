"""What is refused before it waits: what no engine of this size could run, and what is too much."""

import math

import numpy as np

from flm.core.picture import FIRST_ID
from flm.core.request import Request
from flm.errors import BadRequest, PromptTooLong, QueueFull

RETRY_S_MAX = 60  # whoever is refused is not told to wait longer


def validate(request: Request, context_length: int, vocabulary: int) -> None:
    """Raises BadRequest or PromptTooLong."""
    tokens = request.prompt.tokens
    if not tokens:
        raise BadRequest("the prompt is empty", fix="send some text", param="messages")
    if len(tokens) >= context_length:
        raise PromptTooLong(prompt_tokens=len(tokens), context_length=context_length)
    # A prompt may have 100,000 tokens, and this is asked on the event loop.
    words = np.frombuffer(request.prompt.packed, np.int32)
    if request.prompt.pictures:
        words = words[words < FIRST_ID]
    ends = [int(words.min()), int(words.max())] if words.size else []
    for param, ids in (("prompt", ends), ("logit_bias", request.sampling.logit_bias)):
        if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
            raise BadRequest(
                f"{param} names a token outside the vocabulary",
                fix=f"use token ids from 0 to {vocabulary - 1}",
                param=param,
            )


def queue_full(queue_max: int, lane_free_s: float | None) -> QueueFull:
    """`lane_free_s`: in how long a lane is likely to come free, if that is known."""
    full = QueueFull(
        f"{queue_max} requests are waiting already",
        fix="send it again in a moment, or start with a larger --q-len",
    )
    if lane_free_s is not None:
        full.retry_after_s = min(max(1, math.ceil(lane_free_s)), RETRY_S_MAX)
    return full

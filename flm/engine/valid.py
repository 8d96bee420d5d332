"""What no engine of this size could run is refused before it waits."""

from flm.core.request import Request
from flm.errors import BadRequest, PromptTooLong


def validate(request: Request, context_length: int, vocabulary: int) -> None:
    """Raises BadRequest or PromptTooLong."""
    tokens = request.prompt.tokens
    if not tokens:
        raise BadRequest("the prompt is empty", fix="send some text", param="messages")
    if len(tokens) >= context_length:
        raise PromptTooLong(prompt_tokens=len(tokens), context_length=context_length)
    for param, ids in (("prompt", tokens), ("logit_bias", request.sampling.logit_bias)):
        if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
            raise BadRequest(
                f"{param} names a token outside the vocabulary",
                fix=f"use token ids from 0 to {vocabulary - 1}",
                param=param,
            )

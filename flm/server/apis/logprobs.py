"""Log probabilities in the two shapes OpenAI has had for them."""

from collections.abc import Sequence
from typing import Any

from flm.core.event import Generated, TokenLogprob
from flm.text.tokenizer import Tokenizer


def chat_logprobs(tokens: Sequence[Generated], tokenizer: Tokenizer) -> dict[str, Any]:
    content = []
    for token in tokens:
        assert token.logprob is not None, "asked for, so the engine reports it"
        top = [_entry(one, tokenizer) for one in token.top_logprobs]
        content.append({**_entry(token.logprob, tokenizer), "top_logprobs": top})
    return {"content": content, "refusal": None}


def text_logprobs(tokens: Sequence[Generated], tokenizer: Tokenizer) -> dict[str, Any]:
    chosen = [token.logprob for token in tokens if token.logprob is not None]
    tops = [
        {tokenizer.piece(one.token): one.logprob for one in token.top_logprobs} for token in tokens
    ]
    return {
        "tokens": [tokenizer.piece(one.token) for one in chosen],
        "token_logprobs": [one.logprob for one in chosen],
        "top_logprobs": tops if any(tops) else None,
    }


def _entry(one: TokenLogprob, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "token": tokenizer.piece(one.token),
        "logprob": one.logprob,
        "bytes": list(tokenizer.piece_bytes(one.token)),
    }

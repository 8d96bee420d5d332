"""Which tokens end a reply."""

from collections.abc import Iterable, Mapping

# Models declare one such token and are trained to use several, so the known names count too.
_ENDINGS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<turn|>",
        "<|tool_response>",  # Gemma 4 opens the answer to its call
        "<end_of_utterance>",
        "<｜end▁of▁sentence｜>",
    }
)


def ending_ids(special: Mapping[str, int], declared: Iterable[int]) -> list[int]:
    """Ids after which generation ends, rising. `special` are the special tokens by text."""
    ids = {*declared, *(id_ for text, id_ in special.items() if text in _ENDINGS)}
    if special.keys() >= {"<|return|>", "<|call|>", "<|end|>"}:
        ids.discard(special["<|end|>"])  # harmony: <|end|> ends one of a reply's messages
    return sorted(ids)

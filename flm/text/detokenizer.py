"""Tokens to text, one at a time.

Invariants:
  * The texts given out, joined, are `tokenizer.decode` of the tokens added, once finished, and of
    the special tokens that are shown.
  * A character goes out whole: bytes that may be the start of one wait for the rest of it.
"""

import codecs

from flm.text.tokenizer import Tokenizer


class Detokenizer:
    """Of one reply. Special tokens give no text, but those that are `shown`."""

    def __init__(self, tokenizer: Tokenizer, shown: frozenset[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids - shown
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_space = tokenizer.drops_first_space

    def add(self, token: int) -> str:
        """What `token` completes, often "" in the middle of an emoji."""
        if token in self._hidden:
            return ""
        piece = self._tokenizer.piece_bytes(token)
        if self._drops_space and piece:
            self._drops_space = False
            piece = piece.removeprefix(b" ")
        return self._utf8.decode(piece)

    def finish(self) -> str:
        """U+FFFD if the reply ended inside a character, else ""."""
        return self._utf8.decode(b"", final=True)

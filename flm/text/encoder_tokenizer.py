"""Texts to the token ids that an encoder reads: with the tokens that open and close them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flm.text.tokenizer import parse, refusing, well_formed


class EncoderTokenizer:
    """Nothing changes after `load`, so one serves any number of threads."""

    def __init__(self, tokenizer: Any) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.vocabulary: int = max(tokenizer.get_vocab().values(), default=-1) + 1
        self._closing: list[int] = tokenizer.encode("").ids[1:]  # what stands behind every text

    @classmethod
    def load(cls, folder: Path) -> "EncoderTokenizer":
        """Raises BadModelFile."""
        return cls(parse(folder / "tokenizer.json"))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Raises BadRequest."""
        with refusing():
            found = self._tokenizer.encode_batch_fast([well_formed(text) for text in texts])
        return [encoding.ids for encoding in found]

    def cut(self, ids: Sequence[int], length_max: int) -> list[int]:
        """Its beginning, closed as a whole text is."""
        if len(ids) <= length_max:
            return list(ids)
        return [*ids[: length_max - len(self._closing)], *self._closing]

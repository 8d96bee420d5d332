"""Text to token ids and back, over Hugging Face's tokenizer.json.

Invariants:
  * Nothing changes after `load` but what is remembered, so one serves any number of threads.
  * `decode(ids)` is the UTF-8 text of the joined `piece_bytes`: what Detokenizer streams.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from flm.errors import BadModelFile, BadRequest, FlmError
from flm.text.endings import ending_ids
from flm.text.pieces import alphabet_of, byte_level
from flm.text.tokenizer_config import TokenizerConfig, read_tokenizer_config


class Tokenizer:
    """`vocabulary` is the number of ids; a model may have more logits, whose ids decode to nothing.

    `special_ids` are tokens that are not shown, `eos_ids` those of them that end a reply; `special`
    are ids by text, `added` those and others that are never cut into smaller ones.
    `add_bos`: plain text is to be read after `bos_id` (chat templates write it themselves).
    """

    def __init__(self, tokenizer: Any, config: TokenizerConfig) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._piece_bytes, self.drops_first_space = alphabet_of(tokenizer.decoder)
        added = tokenizer.get_added_tokens_decoder()
        self._pieces = _Pieces(self._look_up)
        if self._piece_bytes is byte_level:  # added tokens are written as they are
            self._pieces |= {id_: bytes(token.content, "utf-8") for id_, token in added.items()}
        self.vocabulary: int = max(tokenizer.get_vocab().values(), default=-1) + 1
        self.bos_token, self.eos_token = config.bos_token, config.eos_token
        self.bos_id: int | None = tokenizer.token_to_id(self.bos_token)
        # Where the config is silent, the tokenizer's own post-processor shows what it adds.
        adds = tokenizer.encode("").ids[:1] == [self.bos_id]
        self.add_bos = self.bos_id is not None and (
            adds if config.add_bos is None else config.add_bos
        )
        self.added: Mapping[str, int] = {token.content: id_ for id_, token in added.items()}
        special = {token.content: id_ for id_, token in added.items() if token.special}
        self.special: Mapping[str, int] = special
        eos_id = tokenizer.token_to_id(self.eos_token)
        declared = [*config.declared_eos_ids, *([] if eos_id is None else [eos_id])]
        self.eos_ids = frozenset(config.eos_ids or ending_ids(special, declared))
        self.special_ids = self.eos_ids | frozenset(special.values())

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read tokenizer.json, and beside it tokenizer_config.json and generation_config.json.

        Raises BadModelFile when the first is missing or any of them is broken.
        """
        return cls(parse(folder / "tokenizer.json"), read_tokenizer_config(folder))

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. Special tokens written in it are parsed; none is added."""
        with refusing():
            # As a batch of one: twice as fast, and other Python threads run meanwhile.
            [encoding] = self._tokenizer.encode_batch_fast(
                [well_formed(text)], add_special_tokens=False
            )
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        hidden = self.special_ids if skip_special else frozenset()
        pieces = self._pieces
        text = b"".join([pieces[id_] for id_ in ids if id_ not in hidden])
        if self.drops_first_space:
            text = text.removeprefix(b" ")
        return text.decode(errors="replace")

    def piece(self, id_: int) -> str:
        """A token as text, special ones by name. Part of a character is U+FFFD."""
        return self.piece_bytes(id_).decode(errors="replace")

    def piece_bytes(self, id_: int) -> bytes:
        """The bytes a token stands for; empty when no token has this id."""
        return self._pieces[id_]

    def _look_up(self, id_: int) -> bytes:
        piece = self._tokenizer.id_to_token(id_)
        return b"" if piece is None else self._piece_bytes(piece)


class _Pieces(dict[int, bytes]):
    """By token id, each looked up once: a long prompt has few different ones."""

    def __init__(self, look_up: Callable[[int], bytes]) -> None:
        self._look_up = look_up

    def __missing__(self, id_: int) -> bytes:
        piece = self[id_] = self._look_up(id_)
        return piece


def refusing() -> AbstractContextManager[None]:
    """A text that cannot be encoded is a BadRequest."""
    return _panics_as(_uncuttable)


def _uncuttable(reason: BaseException) -> BadRequest:
    return BadRequest(
        f"the text cannot be cut into words: {reason}",
        fix="shorten its longest run of spaces or letters",
    )


def well_formed(text: str) -> str:
    """`text` without lone surrogates, which JSON can carry and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def parse(path: Path) -> Any:
    import tokenizers

    if not path.is_file():
        raise BadModelFile(f"{path} is missing")
    with _panics_as(lambda reason: BadModelFile(f"{path} is broken: {reason}")):
        return tokenizers.Tokenizer.from_file(str(path))


@contextmanager
def _panics_as(refusal: Callable[[BaseException], FlmError]) -> Iterator[None]:
    """Any failure inside becomes a refusal: the library may panic, which is not an Exception."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise refusal(error) from error

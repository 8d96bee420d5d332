"""What a GGUF file says about its tokens, checked: the file may come from anywhere."""

import math
import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from flm.errors import BadModelFile

TOKENS_MAX = 2**20
MERGES_MAX = 2**21
TOKEN_CHARS_MAX = 1024
CHARS_MAX = 2**24  # of all tokens together

_ENDING_KEYS = ("ggml.eos_token_id", "ggml.eot_token_id", "ggml.eom_token_id")


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3  # never shown
    USER_DEFINED = 4  # matched in text before anything else, and shown
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """Tokens by id, each different, with a type for each, and a score for each if there are any.

    `ending_ids` are those the file declares; None stands for what the file leaves open.
    """

    model: str
    pre: str
    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[tuple[str, str]]
    bos_id: int | None
    eos_id: int | None
    ending_ids: list[int]
    add_bos: bool | None
    add_space_prefix: bool | None
    chat_template: str

    def of_type(self, *types: TokenType) -> dict[str, int]:
        """Ids by token, rising."""
        return {
            token: id_
            for id_, (token, type_) in enumerate(zip(self.tokens, self.types, strict=True))
            if type_ in types
        }


def read_vocabulary(metadata: Mapping[str, Any]) -> GgufVocabulary:
    """The `tokenizer.*` of a GGUF. Raises BadModelFile, naming the key and what is wrong."""
    fields = _Fields(metadata)
    tokens = _tokens(fields)
    count = len(tokens)
    ids = {key: fields.id(key, count) for key in ("ggml.bos_token_id", *_ENDING_KEYS)}
    types = [fields.integer("ggml.token_type", t) for t in fields.list_of("ggml.token_type", count)]
    return GgufVocabulary(
        model=fields.text("ggml.model"),
        pre=fields.text("ggml.pre", default="default"),
        tokens=tokens,
        types=types or [TokenType.NORMAL] * count,
        scores=[fields.score(one) for one in fields.list_of("ggml.scores", count)],
        merges=_merges(fields, frozenset(tokens)),
        bos_id=ids["ggml.bos_token_id"],
        eos_id=ids["ggml.eos_token_id"],
        ending_ids=[id_ for key in _ENDING_KEYS if (id_ := ids[key]) is not None],
        add_bos=fields.flag("ggml.add_bos_token"),
        add_space_prefix=fields.flag("ggml.add_space_prefix"),
        chat_template=fields.text("chat_template", default=""),
    )


def _tokens(fields: "_Fields") -> list[str]:
    values = fields.list_of("ggml.tokens", length_max=TOKENS_MAX)
    if not values:
        raise bad_metadata("ggml.tokens", "is missing or empty")
    # Ids must stay distinct, and some files leave the text of unused ones empty.
    tokens = [
        fields.string("ggml.tokens", one) or f"[EMPTY_{id_}]" for id_, one in enumerate(values)
    ]
    if max(map(len, tokens)) > TOKEN_CHARS_MAX or sum(map(len, tokens)) > CHARS_MAX:
        raise bad_metadata("ggml.tokens", f"has a token of more than {TOKEN_CHARS_MAX} characters")
    if len(set(tokens)) != len(tokens):
        (twice, _), *_ = Counter(tokens).most_common(1)
        raise bad_metadata("ggml.tokens", f"lists {twice!r} twice")
    return tokens


def _merges(fields: "_Fields", tokens: frozenset[str]) -> list[tuple[str, str]]:
    merges = []
    for value in fields.list_of("ggml.merges", length_max=MERGES_MAX):
        merge = fields.string("ggml.merges", value)
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut < 0 or not {left, right, left + right} <= tokens:
            raise bad_metadata(
                "ggml.merges", f"has {merge!r}, which does not join tokens to a token"
            )
        merges.append((left, right))
    return merges


def bad_metadata(key: str, what: str) -> BadModelFile:
    return BadModelFile(
        f"metadata tokenizer.{key} {what}",
        fix="this GGUF was not made by a current converter; get another one",
    )


class _Fields:
    """Typed access to `tokenizer.*`; values may be Python's or numpy's, strings also bytes."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def _value(self, key: str) -> Any:
        value = self._metadata.get(f"tokenizer.{key}")
        tolist = getattr(value, "tolist", None)
        return tolist() if callable(tolist) else value

    def string(self, key: str, value: Any) -> str:
        try:
            text = value.decode() if isinstance(value, bytes) else value
            if isinstance(text, str) and text.encode() is not None:
                return text
        except UnicodeError as error:
            raise bad_metadata(key, f"is not UTF-8: {error}") from error
        raise bad_metadata(key, f"has {type(value).__name__} where text is due")

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key)
        if value is None and default is None:
            raise bad_metadata(key, "is missing")
        return self.string(key, default if value is None else value)

    def flag(self, key: str) -> bool | None:
        value = self._value(key)
        if value is not None and not isinstance(value, bool):
            raise bad_metadata(key, f"is {value!r}, not true or false")
        return value

    def integer(self, key: str, value: Any) -> int:
        try:
            return operator.index(value)
        except TypeError:
            raise bad_metadata(key, f"has {value!r} where a whole number is due") from None

    def id(self, key: str, count: int) -> int | None:
        value = self._value(key)
        if value is None:
            return None
        id_ = self.integer(key, value)
        if not 0 <= id_ < count:
            raise bad_metadata(key, f"is {id_}, and there are {count:,} tokens")
        return id_

    def score(self, value: Any) -> float:
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise bad_metadata("ggml.scores", f"has {value!r} where a finite number is due")
        return float(value)

    def list_of(
        self, key: str, length: int | None = None, *, length_max: int = TOKENS_MAX
    ) -> list[Any]:
        """The list at `key`, empty when there is none; else of `length`, when that is given."""
        value = self._value(key)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            raise bad_metadata(key, f"is {type(value).__name__}, not an array")
        if len(value) > length_max:
            raise bad_metadata(key, f"has {len(value):,} items, more than {length_max:,}")
        if length is not None and len(value) != length:
            raise bad_metadata(key, f"has {len(value):,} items, and there are {length:,} tokens")
        return list(value)

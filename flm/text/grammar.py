"""Grammars over a tokenizer's vocabulary, by llguidance.

Invariants:
  * A reply that follows a grammar and ends by itself is one of its texts.
  * Limits bound what a grammar takes: to be compiled, and for the tokens that may come next.
  * What was compiled lately is not compiled again; no more than `kept_max` are remembered,
    and no longer ones together than one may be.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any, cast

from flm.errors import GrammarFailed
from flm.text.tokenizer import Tokenizer

SOURCE_CHARS_MAX = 2**18  # of a grammar, and of all remembered: schemas make nearly all of it
SYMBOLS_MAX = 100_000  # of its productions
COMPILE_FUEL = 1_000_000  # for its lexer: some 20 ms
MASK_FUEL = 100_000  # for the tokens that may come next: some 10 ms, and
MASK_ITEMS_MAX = 50_000  # in the parser
ROW_ITEMS_MAX = 2_000  # ways to read what was said so far
STATES_MAX = 40_000  # of the lexer, of up to 2 KiB


class NoGrammar(Exception):
    """The text is no grammar, or a larger one than the limits allow; it says why."""


class Grammars:
    """Of one tokenizer, for any thread."""

    def __init__(self, tokenizer: Tokenizer, *, kept_max: int = 0) -> None:
        self._tokenizer = tokenizer
        self._kept_max = kept_max
        self._kept: OrderedDict[str, CompiledGrammar] = OrderedDict()  # by source, last used last
        self._lock = Lock()

    @property
    def special(self) -> Mapping[str, int]:
        """Tokens that stand for themselves, by text."""
        return self._tokenizer.special

    def compile(self, source: str) -> "CompiledGrammar":
        """Takes milliseconds, the first of all as many as the vocabulary has hundreds of tokens;
        one that is remembered, none. Raises NoGrammar.
        """
        with self._lock:
            if kept := self._kept.get(source):
                self._kept.move_to_end(source)
                return kept
        compiled = self._compiled(source)
        with self._lock:
            self._kept[source] = compiled
            while self._crowded:
                self._kept.popitem(last=False)
        return compiled

    @property
    def _crowded(self) -> bool:
        chars = sum(map(len, self._kept))  # of a character come up to 80 bytes
        return len(self._kept) > self._kept_max or chars > SOURCE_CHARS_MAX

    def _compiled(self, source: str) -> "CompiledGrammar":
        from llguidance import LLMatcher

        if not self._tokenizer.eos_ids:
            raise NoGrammar("the model has no token that ends a reply")
        if len(source) > SOURCE_CHARS_MAX:
            raise NoGrammar(f"it has more than {SOURCE_CHARS_MAX:,} characters")
        with self._lock:
            vocabulary = self._vocabulary
        matcher = LLMatcher(vocabulary, source, log_level=0, limits=_limits())
        if not matcher.is_error():
            matcher.compute_bitmask()  # of the reply's first token, for all that follow it
        if matcher.is_error():
            raise NoGrammar(matcher.get_error())
        return CompiledGrammar(matcher)

    @cached_property
    def _vocabulary(self) -> Any:
        from llguidance import LLTokenizer

        tokenizer, words = self._tokenizer, cast(Any, _Words(self._tokenizer))
        return LLTokenizer(words, n_vocab=tokenizer.vocabulary, eos_token=sorted(tokenizer.eos_ids))


class CompiledGrammar:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def open(self) -> "ReplyMatcher":
        return ReplyMatcher(self._matcher.deep_copy())


class ReplyMatcher:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def take(self, tokens: Sequence[int]) -> None:
        self._matcher.consume_tokens(list(tokens))
        self._check()

    def allowed(self) -> bytes:
        allowed: bytes = self._matcher.compute_bitmask()
        self._check()  # what has failed would allow the reply to end
        return allowed

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarFailed(
                f"the reply could not be held to its grammar: {brief(self._matcher.get_error())}",
                fix="send a simpler schema, or leave it out",
            )


class _Words:
    """The vocabulary as the library wants to have it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = min(tokenizer.eos_ids)
        self.special_token_ids = sorted(tokenizer.special_ids)
        self.tokens = [tokenizer.piece_bytes(id_) for id_ in range(tokenizer.vocabulary)]
        self._encode = tokenizer.encode
        self._special = frozenset(self.special_token_ids)
        # What begins a text, SentencePiece puts a space before.
        self._before = "\n" if tokenizer.drops_first_space else ""
        self._before_length = len(self._encode(self._before))

    def __call__(self, text: str) -> list[int]:
        """As a model writes what it has to. No special token is meant by what it is called."""
        ids = self._within(text)
        said = b"".join([self.tokens[id_] for id_ in ids])
        if said == text.encode() and self._special.isdisjoint(ids):
            return ids
        return [id_ for char in text for id_ in self._within(char)]

    def _within(self, text: str) -> list[int]:
        return self._encode(self._before + text)[self._before_length :]


def brief(reason: str) -> str:
    """What the library says without where in our own text, and without its traces."""
    reason = reason.partition("<backtrace>")[0].partition("\n<non-verbose/>")[0]
    reason = reason.partition("failed to compile JSON schema: ")[2] or reason
    return " ".join(reason.partition("\n   1 |")[0].split())


def _limits() -> Any:
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=ROW_ITEMS_MAX,
        initial_lexer_fuel=COMPILE_FUEL,
        step_lexer_fuel=MASK_FUEL,
        step_max_items=MASK_ITEMS_MAX,
        max_lexer_states=STATES_MAX,
        max_grammar_size=SYMBOLS_MAX,
        verbose_errors=False,
    )

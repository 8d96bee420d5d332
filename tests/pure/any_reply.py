"""Replies that a grammar allows, each token of them picked blindly: a model of random weights."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from flm.core.grammar import Grammar
from flm.devices.device import Array
from flm.text.grammar import Grammars
from flm.text.tokenizer import Tokenizer

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "tokenizer"


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.load(FOLDER)


@cache
def grammars() -> Grammars:
    return Grammars(tokenizer())


@dataclass(frozen=True)
class Reply:
    tokens: tuple[int, ...]
    ended: bool  # by itself

    @property
    def text(self) -> str:
        return tokenizer().decode(self.tokens, skip_special=False)


def allowed(grammar: Grammar, tokens: list[int]) -> set[int]:
    """What may come after these tokens."""
    matcher = grammar.open()
    matcher.take(tokens)
    return set(_ids(matcher.allowed()).tolist())


def any_reply(
    grammar: Grammar,
    seed: int,
    *,
    most: int = 400,
    brief: bool = True,
    by: Tokenizer | None = None,
) -> Reply:
    """`brief`: it ends where it may."""
    random, matcher, tokens = np.random.default_rng(seed), grammar.open(), list[int]()
    ends = (by or tokenizer()).eos_ids
    eos = min(ends)
    for _ in range(most):
        ids = _ids(matcher.allowed())
        token = int(ids[random.integers(len(ids))])
        if token in ends or (brief and eos in ids):
            return Reply(tuple(tokens), ended=True)
        tokens.append(token)
        matcher.take([token])
    return Reply(tuple(tokens), ended=False)


def _ids(bits: bytes) -> Array:
    return np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little"))

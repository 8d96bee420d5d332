"""Beginnings of prompts, recognised by length and digest: nothing of the prompt is held."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from flm.prefix.trie import TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Beginning:
    length: int  # tokens
    digest: bytes


def beginnings(packed: bytes, lengths: Iterable[int]) -> Iterator[Beginning]:
    """Of some tokens, by rising length, as far as they go; one walk for all of them."""
    digest, at = blake2b(digest_size=16), 0
    for length in lengths:
        end = length * TOKEN_BYTES
        if end > len(packed):
            return
        digest.update(memoryview(packed)[at:end])
        yield Beginning(length, digest.digest())
        at = end

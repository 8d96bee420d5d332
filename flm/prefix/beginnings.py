"""Beginnings of prompts, recognised by length and digest: but the last tokens, none are held."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

from flm.prefix.trie import TOKEN_BYTES

LAST_BYTES = 16 * TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Beginning:
    length: int  # tokens
    digest: bytes
    last: bytes  # its last tokens, packed

    def likely(self, packed: bytes) -> bool:
        """Whether these begin so, by what is quick to compare; if not, they do not."""
        return packed.endswith(self.last, 0, self.length * TOKEN_BYTES)


def beginnings(packed: bytes, lengths: Iterable[int]) -> Iterator[Beginning]:
    """Of some tokens, by rising length, as far as they go; one walk for all of them."""
    digest, at = sha256(usedforsecurity=False), 0  # where a CPU has it in hardware, the fastest
    for length in lengths:
        end = length * TOKEN_BYTES
        if end > len(packed):
            return
        digest.update(memoryview(packed)[at:end])
        yield Beginning(length, digest.digest(), packed[max(0, end - LAST_BYTES) : end])
        at = end

"""What a reply may be, token by token: a grammar is opened once a reply."""

from collections.abc import Sequence
from typing import Protocol


class Matcher(Protocol):
    """Of one reply."""

    def take(self, tokens: Sequence[int]) -> None:
        """What the reply goes on with. Raises GrammarFailed where the grammar has it otherwise."""
        ...

    def allowed(self) -> bytes:
        """A bit a token, the lowest first: those that may come next. Ones that end the reply are
        among them where it is complete. Raises GrammarFailed.
        """
        ...


class Grammar(Protocol):
    """Never changed: any number of replies may follow it, in any thread."""

    def open(self) -> Matcher: ...

"""Text as it comes, for parsers that are generators: they yield where they need more of it."""

from collections.abc import Callable, Generator
from typing import TypeVar

from flm.text.stops import held_length

Result = TypeVar("Result")
Parse = Generator[None, None, Result]


class NotACall(Exception):
    """What looked like a call is none."""


class Feed:
    """`closers` end what is read as the end of the text does, outside of strings."""

    def __init__(self, text: str = "", *, ended: bool = False) -> None:
        self.closers: tuple[str, ...] = ()
        self.ended = ended
        self._text = text
        self._at = 0
        self._held: int | None = None  # where `back` goes to

    def add(self, text: str) -> None:
        assert not self.ended, "text after the end"
        start = self._at if self._held is None else self._held
        self._text = self._text[start:] + text
        self._at -= start
        self._held = None if self._held is None else 0

    def hold(self) -> None:
        """From here on all may turn out to be no call."""
        self._held = self._at

    def free(self) -> None:
        """It is one."""
        self._held = None

    def back(self) -> None:
        if self._held is not None:
            self._at = self._held

    def take(self, length: int) -> str:
        start, self._at = self._at, self._at + length
        return self._text[start : self._at]

    def peek(self, length: int = 1) -> Parse[str]:
        """The next characters; fewer only at the end."""
        while len(self._text) - self._at < length and not self.ended:
            yield
        return self._text[self._at : self._at + length]

    def next(self) -> Parse[str]:
        """The next character; "" at the end and before a closer."""
        for closer in self.closers:
            if (yield from self.sees(closer)):
                return ""
        return (yield from self.peek())

    def sees(self, mark: str) -> Parse[bool]:
        """Whether the text goes on with `mark`; waits no longer than that is open."""
        while True:
            text = self._text[self._at : self._at + len(mark)]
            if text == mark:
                return True
            if self.ended or not mark.startswith(text):
                return False
            yield

    def skip(self, *marks: str) -> Parse[bool]:
        """Take the first of these that is there."""
        for mark in marks:
            if (yield from self.sees(mark)):
                self._at += len(mark)
                return True
        return False

    def skip_all(self, characters: str) -> Parse[None]:
        while (char := (yield from self.peek())) and char in characters:
            self._at += 1

    def space(self) -> Parse[None]:
        while (yield from self.peek()).isspace():
            self._at += 1

    def word(self, more: str = "") -> Parse[str]:
        """Letters, digits, "_" and what is in `more`."""
        found = ""
        while (char := (yield from self.next())) and (char.isalnum() or char in "_" + more):
            found += self.take(1)
        return found

    def until(self, marks: tuple[str, ...], give: Callable[[str], object]) -> Parse[str]:
        """Gives the text up to the first of `marks` as it comes; the mark, which is not taken.

        "" at the end.
        """
        while True:
            rest = self._text[self._at :]
            found = [(start, mark) for mark in marks if (start := rest.find(mark)) >= 0]
            if found:
                start, mark = min(found)
                give(self.take(start))
                return mark
            give(self.take(len(rest) if self.ended else len(rest) - held_length(rest, marks)))
            if self.ended:
                return ""
            yield


def exhaust(parse: Parse[Result]) -> Result:
    """The result of a parser whose feed has ended."""
    while True:
        try:
            next(parse)
        except StopIteration as end:
            result: Result = end.value
            return result

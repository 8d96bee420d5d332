"""Tells calls from content, by a dialect's syntax."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from flm.core.chat import Delta, DeltaKind, joined
from flm.text.dialects.dialect import ToolList
from flm.text.dialects.feed import Feed, NotACall, Parse
from flm.text.dialects.schemas import Schemas


class Said:
    """The deltas of a reply in the making. What is written belongs to the call begun last.

    White space beside calls is content only where content stands on both sides of it.
    """

    def __init__(self, tools: ToolList) -> None:
        self.schemas = Schemas(tools)
        self.spoken = False  # whether there is content that is more than white space
        self.calls = 0
        self.cut = False  # the reply broke off: nothing more is begun or completed
        self._space = ""
        self._due: list[Delta] = []

    def content(self, text: str) -> None:
        text = self._space + text
        words = text.rstrip()
        self._space = text[len(words) :]
        if words:
            first_after_calls = self.calls and not self.spoken
            self._due.append(
                Delta(DeltaKind.CONTENT, words.lstrip() if first_after_calls else words)
            )
            self.spoken = True

    def reasoning(self, text: str) -> None:
        if text:
            self._due.append(Delta(DeltaKind.REASONING, text))

    def begin(self, name: str) -> None:
        """Raises NotACall where it is too late for one."""
        if self.cut:
            raise NotACall
        call_id = f"call_{secrets.token_hex(12)}"
        self._due.append(Delta(DeltaKind.CALL, name, self.calls, call_id))
        self.calls += 1

    def write(self, json: str) -> None:
        if json and not self.cut:
            self._due.append(Delta(DeltaKind.ARGUMENTS, json, self.calls - 1))

    def finish(self) -> None:
        if not self.calls and self._space:
            self._due.append(Delta(DeltaKind.CONTENT, self._space))
        self._space = ""

    def take(self) -> list[Delta]:
        due, self._due = self._due, []
        return joined(due)


@dataclass(frozen=True, slots=True)
class Syntax:
    """`read` takes what begins with one of `opens`, one call or several, or raises NotACall before
    it has begun one. A reply may also begin with `bare`.
    """

    read: Callable[[Feed, Said], Parse[None]]
    opens: tuple[str, ...]
    bare: str = ""


class CallReader:
    def __init__(self, syntax: Syntax, tools: ToolList) -> None:
        self._syntax = syntax
        self._feed = Feed()
        self.said = Said(tools)
        self._parse = self._read()

    def add(self, text: str) -> list[Delta]:
        self._feed.add(text)
        next(self._parse, None)
        return self.said.take()

    def finish(self, *, cut: bool = False) -> list[Delta]:
        self._feed.ended, self.said.cut = True, cut
        next(self._parse, None)
        return self.said.take()

    def _read(self) -> Parse[None]:
        feed, said = self._feed, self.said
        while opener := (yield from self._opener()):
            feed.hold()
            try:
                yield from self._syntax.read(feed, said)
            except NotACall:
                feed.back()
                is_opener = yield from feed.sees(opener)
                said.content(feed.take(len(opener) if is_opener else 1))
            feed.free()
            feed.closers = ()
        said.finish()

    def _opener(self) -> Parse[str]:
        """Says what comes before it; "" at the end."""
        if self._syntax.bare and not self.said.spoken:
            while (char := (yield from self._feed.peek())).isspace():
                self.said.content(self._feed.take(1))
            if char and char in self._syntax.bare:
                return char
        return (yield from self._feed.until(self._syntax.opens, self.said.content))

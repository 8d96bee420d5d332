"""Replies whose thoughts stand in tags: thoughts are told from the rest first, then calls.

A call within a thought is a draft of one, so part of the thought. But models forget to close a
thought before they call: calls that an open thought ends with are calls.
"""

from flm.core.chat import Delta, DeltaKind, joined
from flm.text.dialects.calls import CallReader, Syntax
from flm.text.dialects.dialect import Calls, Dialect, ToolList
from flm.text.splitter import Splitter
from flm.text.stops import held_length


class TaggedReader:
    """`syntax` None: nothing is a call."""

    def __init__(self, splitter: Splitter, syntax: Syntax | None, tools: ToolList = ()) -> None:
        self._splitter = splitter
        self._thought: int | None = None  # the one that is open
        self._calls = CallReader(syntax, tools) if syntax else None
        self._draft = _Draft(syntax, tools) if syntax else None

    @property
    def thinking(self) -> bool:
        return self._splitter.thinking

    def add(self, text: str) -> list[Delta]:
        deltas = self._read(self._splitter.add(text))
        return deltas + self._close(self._splitter.thoughts if self.thinking else None)

    def finish(self, *, cut: bool = False) -> list[Delta]:
        deltas = self._read(self._splitter.finish())
        if self._calls and self._draft:
            deltas += self._draft.finish(cut=cut) if self.thinking else []
            deltas += self._calls.finish(cut=cut)
        return deltas

    def _read(self, deltas: list[Delta]) -> list[Delta]:
        if not (self._calls and self._draft):
            return deltas
        read: list[Delta] = []
        for delta in deltas:
            if delta.kind is DeltaKind.REASONING:
                read += self._close(delta.index) + self._draft.add(delta.text)
            else:
                read += self._close(None) + self._calls.add(delta.text)
        return read

    def _close(self, thought: int | None) -> list[Delta]:
        """The thought before, if another one or none is open now."""
        before, self._thought = self._thought, thought
        return self._draft.close() if self._draft and before != thought else []


class _Draft:
    """The thought, held back from where it might end with calls."""

    def __init__(self, syntax: Syntax, tools: ToolList) -> None:
        self._syntax, self._tools, self._opens = syntax, tools, syntax.opens
        self._held = ""
        self._reader: CallReader | None = None  # of what is held, once it begins like a call
        self._read: list[Delta] = []

    def add(self, text: str) -> list[Delta]:
        deltas: list[Delta] = []
        if self._reader is None:
            text, self._held = self._held + text, ""
        while text:
            if self._reader is None:
                found = [at for each in self._opens if (at := text.find(each)) >= 0]
                start = min(found, default=len(text) - held_length(text, self._opens))
                deltas += _thought(text[:start])
                text = text[start:]
                if not found:
                    self._held = text
                    break
                self._reader, self._read = CallReader(self._syntax, self._tools), []
            length, goes_on = self._try(self._reader, text)
            self._held, text = self._held + text[:length], text[length:]
            if not goes_on:
                passed = len(self._held) - held_length(self._held, self._opens)
                deltas += _thought(self._held[:passed])
                text, self._held, self._reader = self._held[passed:] + text, "", None
        return joined(deltas)

    def _try(self, reader: CallReader, text: str) -> tuple[int, bool]:
        """How much of the text was read, and whether all of it is calls."""
        # One by one, so that any cut of the text is given up at the same place.
        for length, char in enumerate(text, 1):
            read = reader.add(char)
            self._read += read
            if any(delta.kind is DeltaKind.CONTENT for delta in read):
                return length, False
        return len(text), True

    def close(self) -> list[Delta]:
        """The thought is over: what looked like calls was a draft."""
        held, self._held, self._reader = self._held, "", None
        return _thought(held)

    def finish(self, *, cut: bool) -> list[Delta]:
        """The reply is over, and the thought is open."""
        if self._reader is not None:
            read = self._read + self._reader.finish(cut=cut)
            if all(delta.kind is not DeltaKind.CONTENT for delta in read):
                return read
        return self.close()


def _thought(text: str) -> list[Delta]:
    return [Delta(DeltaKind.REASONING, text)] if text else []


def tagged(
    name: str,
    syntax: Syntax | None,
    *,
    marks: tuple[str, ...],
    calls: Calls | None = None,
    thought: tuple[str, str] = ("<think>", "</think>"),
    thought_marks: tuple[str, ...] | None = None,
) -> Dialect:
    """A dialect of calls that `syntax` reads and `calls` writes, whose tags are `marks`."""

    def open_reader(tools: ToolList, thinking: bool) -> TaggedReader:
        splitter = Splitter(opens=thought[0], closes=thought[1], thinking=thinking)
        return TaggedReader(splitter, syntax if tools else None, tools)

    shown = thought if thought_marks is None else thought_marks
    return Dialect(name, open_reader, marks=shown, call_marks=marks, thought=thought, calls=calls)


PLAIN = tagged("plain", None, marks=())

"""Where in a conversation a character of its rendered text comes from.

No template is known here: contents, thoughts, tool calls and tools are searched in the text in
their order. What a template changed beyond finding counts as text of the template.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import dropwhile, islice
from typing import Any, NamedTuple

from flm.core.chat import Conversation, Message
from flm.text.tokenizer import Tokenizer

LONG = 24  # characters: what is as long is hardly found where it does not stand
ENDS = 40  # characters of both ends that stand for a text of which the middle was changed
WINDOW_TOKENS = 16
# Bounds on searching, so that no prompt takes long: found or not, it is only a place.
TRIES_MAX = 64
MEMBERS_MAX = 512
DEPTH_MAX = 32

_CLOSING = re.compile(r"[^\w<]*")  # what may stand behind the last word of a tool
_PLAIN = re.compile(r"(\.[A-Za-z_$][\w$-]{0,39}|\[\d+\])*", re.ASCII)


class Part(Enum):
    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "tool call"
    TOOL = "tool"
    TEMPLATE = "template"
    PICTURE = "picture"
    TEXT = "text"  # of a plain completion


@dataclass(frozen=True, slots=True)
class Place:
    """`offset` characters into messages[`message`].content, or another part.

    `whole` is the message's field or the tool, `path` leads further into its JSON. For TEMPLATE,
    `message` is the one before, None at the start.
    """

    part: Part
    whole: str
    path: str = ""
    offset: int = 0
    message: int | None = None
    role: str | None = None

    def __str__(self) -> str:
        return self.whole + self.path

    @property
    def plain(self) -> str:
        """Without what may be a user's words: keys of arguments, and keys that are no names."""
        said = self.part is Part.TOOL and _PLAIN.fullmatch(self.path)
        return self.whole + (self.path if said else "")


class Member(NamedTuple):
    """A member of a JSON value, wherever and however a template wrote it: key and value."""

    start: int
    value: int  # where the value starts
    end: int
    path: str


class Span(NamedTuple):
    """text[start:end] is `place`, which is JSON if it has members."""

    start: int
    end: int
    place: Place
    members: tuple[Member, ...] = ()

    def moved(self, char: int) -> Place:
        """The place of `char` in it."""
        path, start = _path_at(self.members, char, self.start)
        return replace(self.place, path=path, offset=max(0, char - start))


class Pieces(dict[int, bytes]):
    """Bytes of token ids, each looked up once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, id_: int) -> bytes:
        piece = self[id_] = self._tokenizer.piece_bytes(id_)
        return piece

    def text(self, ids: Iterable[int]) -> str:
        return b"".join([self[id_] for id_ in ids]).decode(errors="replace")


def char_at(text: str, tokens: Sequence[int], offset: int, pieces: Pieces) -> int:
    """How many characters of `text` come before token `offset`; a guess if it was normalised."""
    size = WINDOW_TOKENS
    while True:
        start = max(0, offset - size)
        before = pieces.text(tokens[start:offset]).strip("\ufffd")  # parts of characters
        if not start:
            before = before if text.startswith(before) else before.removeprefix(" ")
        at = text.find(before)
        if at < 0:
            return len(text) * offset // max(1, len(tokens))
        if not start:
            return (0 if text.startswith(before) else at) + len(before)
        if text.find(before, at + 1) < 0:
            return at + len(before)
        size *= 4


class Places:
    """Of one rendered conversation. `contents` are those contents that were found, in order."""

    def __init__(self, conversation: Conversation, text: str) -> None:
        self._messages = conversation.messages
        self._tools = conversation.tools
        self._text = text
        self.contents = list(self._contents())
        self.tools = list(self._tool_names())

    def span(self, char: int) -> Span:
        """What `char` lies in, or ends."""
        last = next((span for span in reversed(self.contents) if span.start <= char), None)
        if last and char <= last.end:
            return last
        for span in self._between(last, char):
            if span.start <= char <= span.end:
                return span
        if tool := self._tool(char):
            return tool
        if last is None:
            return Span(0, char, Place(Part.TEMPLATE, "template"))
        number = last.place.message
        whole = f"template after messages[{number}]"
        return Span(last.end, char, Place(Part.TEMPLATE, whole, "", 0, number, last.place.role))

    def _contents(self) -> Iterator[Span]:
        """Long ones are searched first: they bound where short ones may be."""
        found: dict[int, tuple[int, int]] = {}
        pos, size = 0, len(self._text)
        for number, message in enumerate(self._messages):
            long = len(message.content or "") >= LONG
            if long and (span := _search(self._text, message.content, pos, size)):
                found[number] = span
                pos = span[1]
        stops, stop = {}, size
        for number in reversed(range(len(self._messages))):
            stops[number] = stop
            stop = found[number][0] if number in found else stop
        pos = 0
        for number, message in enumerate(self._messages):
            here = found.get(number) or _search(self._text, message.content, pos, stops[number])
            if here:
                yield Span(*here, _place(number, message, Part.CONTENT))
                pos = here[1]

    def _between(self, last: Span | None, char: int) -> Iterator[Span]:
        """Thoughts and tool calls between two contents that were found."""
        after = next((span for span in self.contents if span.start > char), None)
        pos = last.end if last else 0
        stop = after.start if after else len(self._text)
        first = last.place.message if last else -1
        until = after.place.message if after else len(self._messages)
        assert first is not None
        assert until is not None
        for number in range(max(first, 0), min(until + 1, len(self._messages))):
            message = self._messages[number]
            thought = message.reasoning if number > first else None
            if here := _search(self._text, thought, pos, stop):
                yield Span(*here, _place(number, message, Part.REASONING))
                pos = here[1]
            for span in self._calls(number, pos, stop) if number < until else ():
                yield span
                pos = span.end

    def _calls(self, number: int, pos: int, stop: int) -> Iterator[Span]:
        message = self._messages[number]
        for index, call in enumerate(message.tool_calls):
            start = _word(self._text, call.name, pos, stop)
            if start < 0:
                continue
            whole = f"messages[{number}].tool_calls[{index}]"
            place = _place(number, message, Part.CALL)
            pos = start + len(call.name)
            yield Span(start, pos, replace(place, whole=f"{whole}.name"))
            members = _members(self._text, _json(call.arguments), pos, stop)
            if members:
                place = replace(place, whole=f"{whole}.arguments")
                start, pos = members[0].start, members[-1].end
                yield Span(start, pos, place, members)

    def _tool_names(self) -> Iterator[tuple[int, int]]:
        """(where its name stands, number) of each tool that was found."""
        pos = 0
        for number, tool in enumerate(self._tools):
            if name := tool_name(tool):
                quoted = self._text.find(f'"{name}"', pos)
                at = _word(self._text, name, pos, len(self._text)) if quoted < 0 else quoted + 1
                if at >= 0:
                    yield at, number
                    pos = at + len(name)

    def _tool(self, char: int) -> Span | None:
        """The one that has `char`, or has it among the brackets behind."""
        index = bisect_right(self.tools, char, key=lambda tool: tool[0])
        for near in (index, index - 1):
            if 0 <= near < len(self.tools):
                span = self._tool_span(near)
                behind = _CLOSING.fullmatch(self._text[span.end : char + 1])
                if span.start <= char and (char <= span.end or behind):
                    return span._replace(end=max(span.end, char))
        return None

    def _tool_span(self, index: int) -> Span:
        name, number = self.tools[index]
        later = [at for at, _ in self.tools[index + 1 :]]
        later += [span.start for span in self.contents if span.start > name]
        stop = min(later, default=len(self._text))
        tool = self._tools[number]
        # Where its first key is, if its members lead from there to its name.
        first = self._text.rfind(f'"{next(iter(tool))}"', 0, name) + 1
        members = _members(self._text, tool, first, stop) if first else ()
        if not any(member.value == name for member in members):
            members = _members(self._text, _from_name(tool), name, stop)
        start = min((member.start for member in members), default=name)
        end = max((member.end for member in members), default=name)
        return Span(start, end, Place(Part.TOOL, f"tools[{number}]"), members)


def _from_name(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tool without what is written before its name."""
    function = tool.get("function")
    if isinstance(function, Mapping):
        return {"function": _from_name(function)}
    return dict(dropwhile(lambda member: member[0] != "name", tool.items()))


def tool_name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""


def _place(number: int, message: Message, part: Part) -> Place:
    return Place(part, f"messages[{number}].{part.value}", "", 0, number, message.role)


def _search(text: str, content: str | None, pos: int, stop: int) -> tuple[int, int] | None:
    """Where `content` stands in text[pos:stop], as templates write it."""
    stripped = (content or "").strip()
    if not stripped:
        return None
    for form in (stripped, stripped.rpartition("</think>")[2].strip(), json_text(stripped)):
        if form and (at := _word(text, form, pos, stop)) >= 0:
            return at, at + len(form)
    if len(stripped) > 2 * ENDS:
        start = text.find(stripped[:ENDS], pos, stop)
        end = text.find(stripped[-ENDS:], start + ENDS, min(stop, start + 2 * len(stripped)))
        if 0 <= start < end:
            return start, end + ENDS
    return None


def _word(text: str, form: str, pos: int, stop: int) -> int:
    """Where `form` stands in text[pos:stop], and if it is short, not within a word; or -1."""
    for _ in range(TRIES_MAX):
        at = text.find(form, pos, stop)
        pos, end = at + 1, at + len(form)
        inside = text[max(0, at - 1) : at].isalnum() and form[0].isalnum()
        inside |= text[end : end + 1].isalnum() and form[-1].isalnum()
        if at < 0 or len(form) >= LONG or not inside:
            return at
    return -1


def json_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _members(text: str, value: Any, pos: int, stop: int) -> tuple[Member, ...]:
    """Those found in text[pos:stop], in their order; of what is nested, the innermost."""
    return tuple(islice(_inner(text, value, "", pos, stop, DEPTH_MAX), MEMBERS_MAX))


def _inner(text: str, value: Any, path: str, pos: int, stop: int, depth: int) -> Iterator[Member]:
    if not depth:
        return
    if isinstance(value, Mapping):
        inner = [(str(key), f".{key}", one) for key, one in value.items()]
    elif isinstance(value, list | tuple):
        inner = [("", f"[{index}]", one) for index, one in enumerate(value)]
    else:
        if (at := _scalar(text, value, pos, stop)) is not None:
            yield Member(at[0], at[0], at[1], path)
        return
    for key, step, one in inner:
        at_key = _word(text, key, pos, stop) if key else -1
        pos = pos if at_key < 0 else at_key + len(key)
        first = Member(at_key, pos, pos, path + step) if at_key >= 0 else None
        for member in _inner(text, one, path + step, pos, stop, depth - 1):
            yield member._replace(start=first.start) if first else member
            first, pos = None, member.end
        if first:
            yield first


def _scalar(text: str, value: Any, pos: int, stop: int) -> tuple[int, int] | None:
    forms = (json_text(value), value) if isinstance(value, str) else (json.dumps(value), str(value))
    for form in forms:
        if form and (at := _word(text, form, pos, stop)) >= 0:
            return at, at + len(form)
    return None


def _path_at(members: Sequence[Member], char: int, start: int) -> tuple[str, int]:
    """(the path of the member that has `char`, where its value starts); "" for none of them."""
    for member in reversed(members):
        if member.start <= char <= member.end:
            return member.path, min(char, member.value)
    return "", start

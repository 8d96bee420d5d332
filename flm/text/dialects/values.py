"""Values as models write them, to JSON text: JSON itself, Python's literals, Gemma's bare keys.

All is read as something: a missing end is added, a comma too much left out, what is no literal is
a string. So each parser takes at least a character or stands before a closer.
"""

import json
import re
from collections.abc import Callable

from flm.text.dialects.feed import Feed, Parse, exhaust

Write = Callable[[str], object]

DEPTH_MAX = 64
CLOSES = {"{": "}", "[": "]", "(": ")"}
QUOTES = ('"""', "'''", '"', "'")  # longest first
CONSTANTS = {
    **dict.fromkeys(("true", "True"), "true"),
    **dict.fromkeys(("false", "False"), "false"),
    **dict.fromkeys(("null", "None"), "null"),
}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


def value(feed: Feed, write: Write, *, raw: str = "", around: str = "") -> Parse[None]:
    """Reads one value and writes it as JSON, as it comes.

    `raw` opens and closes strings without escapes; `around` are the closers of what it stands in.
    """
    yield from feed.space()
    char = yield from feed.next()
    if quote := (yield from _quote(feed, raw)):
        yield from _string(feed, write, quote, escapes=quote != raw)
    elif char and char in CLOSES:
        yield from _container(feed, write, raw, around)
    else:
        write(literal((yield from _bare(feed, ',]})\n"'))))


def literal(word: str) -> str:
    """A word as JSON: a constant, a number, or a string."""
    if not word or word in CONSTANTS:
        return CONSTANTS.get(word, "null")
    return word if _NUMBER.fullmatch(word) else json.dumps(word, ensure_ascii=False)


def object_in(text: str) -> str | None:
    """The JSON of an object or array that `text` is as a whole, however it is written."""
    if not text.startswith(("{", "[")):
        return None
    feed, written = Feed(text, ended=True), list[str]()
    exhaust(value(feed, written.append))
    return None if exhaust(feed.peek()) else "".join(written)


def text_of(feed: Feed) -> Parse[str | None]:
    """A string's text; None where none stands."""
    yield from feed.space()
    quote = yield from _quote(feed, "")
    if not quote:
        return None
    written: list[str] = []
    yield from _string(feed, written.append, quote, escapes=True)
    text: str = json.loads("".join(written))
    return text


def _quote(feed: Feed, raw: str) -> Parse[str]:
    for quote in (raw, *QUOTES):
        if quote and (yield from feed.sees(quote)):
            return quote
    return ""


def _container(feed: Feed, write: Write, raw: str, around: str) -> Parse[None]:
    closer = CLOSES[feed.take(1)]
    if len(around) >= DEPTH_MAX:
        write("null")
        return
    keyed, around = closer == "}", around + closer
    write("{" if keyed else "[")
    separator = ""
    while True:
        yield from feed.skip_all(" \t\r\n,")
        char = yield from feed.next()
        if not char or char in around:  # another's closer ends this as well
            break
        if char in "]})":
            feed.take(1)
            continue
        write(separator)
        separator = ", "
        if keyed:
            yield from _key(feed, write, raw)
        yield from value(feed, write, raw=raw, around=around)
    if char == closer:
        feed.take(1)
    write("}" if keyed else "]")


def _key(feed: Feed, write: Write, raw: str) -> Parse[None]:
    if quote := (yield from _quote(feed, raw)):
        yield from _string(feed, write, quote, escapes=quote != raw)
    else:
        write(json.dumps((yield from _bare(feed, ":=,]})\n")), ensure_ascii=False))
    yield from feed.space()
    yield from feed.skip(":", "=")
    write(": ")


def _bare(feed: Feed, ends: str) -> Parse[str]:
    word = ""
    while (char := (yield from feed.next())) and char not in ends:
        word += feed.take(1)
    return word.strip()


def _string(feed: Feed, write: Write, quote: str, *, escapes: bool) -> Parse[None]:
    """One that is never closed ends with the text."""

    def give(text: str) -> None:
        if text:
            write(json.dumps(text, ensure_ascii=False)[1:-1])

    feed.take(len(quote))
    write('"')
    marks = (quote, "\\") if escapes else (quote,)
    while mark := (yield from feed.until(marks, give)):
        if mark == "\\":
            write((yield from _escape(feed)))
        elif not escapes or (yield from _closes(feed, quote)):
            feed.take(len(quote))
            break
        else:
            give(feed.take(len(quote)))
    write('"')


def _closes(feed: Feed, quote: str) -> Parse[bool]:
    """Whether the quote ends its string, for models forget to escape those inside: something
    that can follow a value or a key comes next.
    """
    length = len(quote)
    while True:
        length += 1
        text = yield from feed.peek(length)
        if len(text) < length or text[-1] in ",:=]})":
            return True
        if not text[-1].isspace():
            break
    for closer in feed.closers:
        if closer[0] == text[-1]:
            ahead = yield from feed.peek(length - 1 + len(closer))
            if ahead.endswith(closer):
                return True
    return False


def _escape(feed: Feed) -> Parse[str]:
    """An escape of JSON or Python, as JSON; before anything else a backslash is one."""
    feed.take(1)
    char = yield from feed.peek()
    if char and char in '"\\/bfnrt':
        return "\\" + feed.take(1)
    if char == "'":
        return feed.take(1)
    digits = {"u": 4, "x": 2}.get(char, 0)
    text = yield from feed.peek(1 + digits)
    if digits and re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", text[1:]):
        feed.take(1 + digits)
        return f"\\u{text[1:]:0>4}"
    return "\\\\"

"""Calls as JSON objects: {"name": ..., "arguments": {...}}, alone or in a list."""

import json
from collections.abc import Callable

from flm.core.chat import is_function_name
from flm.text.dialects.calls import Said
from flm.text.dialects.feed import Feed, NotACall, Parse
from flm.text.dialects.values import object_in, text_of, value

NAME, ARGUMENTS, WHOLE = "name", ("arguments", "parameters", "args"), "function"
KEYS = (NAME, WHOLE, *ARGUMENTS, "type", "id", "index")
BLANK = " \t\r\n"
ReadOne = Callable[[Feed, Said], Parse[None]]


def listed(feed: Feed, said: Said, read_one: ReadOne) -> Parse[None]:
    """One call or more, up to a closer, with brackets around and commas between or not."""
    yield from feed.space()
    yield from feed.skip("[")
    calls = said.calls
    while True:
        yield from feed.skip_all(BLANK + ",;}")
        char = yield from feed.next()
        if not char or char == "]":
            break
        if said.calls > calls:  # what came before is said
            feed.hold()
        yield from read_one(feed, said)
    if said.calls == calls:
        raise NotACall
    yield from feed.skip("]")


def call(feed: Feed, said: Said) -> Parse[None]:
    """One object. Keys may come in any order; arguments before the name wait for it."""
    yield from _object(feed, said, sure=True)


def known_call(feed: Feed, said: Said) -> Parse[None]:
    """The same where nothing marks it as a call: its name must be a tool's, and no key another."""
    yield from _object(feed, said, sure=False)


def _object(feed: Feed, said: Said, *, sure: bool) -> Parse[None]:
    if not (yield from feed.skip("{")):
        raise NotACall
    name, early, begun = "", "", False
    while True:
        yield from feed.skip_all(BLANK + ",")
        char = yield from feed.next()
        if not char or char == "}":
            break
        key = yield from text_of(feed)
        if key is None or not (sure or key in KEYS):
            if begun:
                break
            raise NotACall
        yield from feed.space()
        yield from feed.skip(":")
        yield from feed.space()
        if key == WHOLE and (yield from feed.sees("{")):
            yield from _object(feed, said, sure=sure)
            begun = True
        elif key in (NAME, WHOLE) and not name:
            name = (yield from text_of(feed)) or ""
            if not is_function_name(name) or not (sure or name in said.schemas):
                raise NotACall
        elif key in ARGUMENTS and name and not begun:
            _begin(feed, said, name)
            begun = True
            yield from _arguments(feed, said.write)
        else:
            written: list[str] = []
            if key in ARGUMENTS:
                yield from _arguments(feed, written.append)
                early = "".join(written)
            else:
                yield from value(feed, written.append)
    if not begun:
        if not name:
            raise NotACall
        _begin(feed, said, name)
        said.write(early or "{}")
    yield from feed.skip("}")


def _begin(feed: Feed, said: Said, name: str) -> None:
    said.begin(name)
    feed.free()


def _arguments(feed: Feed, write: Callable[[str], object]) -> Parse[None]:
    """An object; some models write it as a string, or null for none."""
    yield from feed.space()
    if (yield from feed.sees("{")):
        yield from value(feed, write, around="}]")
        return
    written: list[str] = []
    yield from value(feed, written.append, around="}]")
    text = "".join(written)
    inside = json.loads(text).strip() if text.startswith('"') else ""
    write(object_in(inside) or ("{}" if text in ("null", '""') else text))

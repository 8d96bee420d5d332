"""Qwen3-Coder, Qwen3.5: <function=NAME><parameter=KEY>VALUE</parameter></function>.

Values have no quotes: what they are is in the tool's schema.
"""

import json
import re

from flm.core.chat import is_function_name
from flm.text.dialects.calls import Said
from flm.text.dialects.dialect import ToolList
from flm.text.dialects.feed import Feed, NotACall, Parse
from flm.text.dialects.schemas import TEXT, typed
from flm.text.dialects.shapes import (
    SAYS_NOTHING,
    NotPlain,
    Schema,
    choices,
    functions,
    members,
    own_words,
    plain_key,
)
from flm.text.dialects.values import value
from flm.text.lark import Lark, either

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
# A value may lack its own end, but not the line break before what follows.
ENDS = (f"\n{PARAMETER_END}", PARAMETER_END, f"\n{PARAMETER}", f"\n{FUNCTION_END}")
BREAK, VALUE_END = "\n", f"\n{PARAMETER_END}\n"
END = f"{FUNCTION_END}\n</tool_call>"
BOOLEAN = '("true" | "false" | "True" | "False")'  # templates write Python's
NULLS = ({"type": "null"}, {"const": None})
KEY = re.compile(r"[^\s<>\"']+")
NULL_CHARS = len("\nnull\n" + PARAMETER_END)


def function(feed: Feed, said: Said, *, sure: bool) -> Parse[None]:
    """`sure`: it is marked as a call, so its name need not be a tool's."""
    if not (yield from feed.skip(FUNCTION)):
        raise NotACall
    name = yield from _name(feed)
    if not is_function_name(name) or not (sure or name in said.schemas):
        raise NotACall
    said.begin(name)
    feed.free()
    yield from feed.space()
    if (yield from feed.sees("{")):
        yield from value(feed, said.write)
    else:
        yield from _parameters(feed, said, name)
    yield from feed.space()
    yield from feed.skip(FUNCTION_END)


def _parameters(feed: Feed, said: Said, name: str) -> Parse[None]:
    separator = "{"
    while (yield from feed.skip(PARAMETER)):
        key = yield from _name(feed)
        said.write(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        separator = ", "
        yield from feed.skip("\n")
        yield from _value(feed, said, said.schemas.types(name, key))
        yield from feed.skip("\n")
        yield from feed.skip(PARAMETER_END)
        yield from feed.space()
    said.write("{}" if separator == "{" else "}")


def _name(feed: Feed) -> Parse[str]:
    found: list[str] = []
    yield from feed.until((">", "\n"), found.append)
    yield from feed.skip(">")
    return "".join(found).strip(" \"'")


def _value(feed: Feed, said: Said, types: frozenset[str]) -> Parse[None]:
    """Text goes out as it comes; what may be something else must be there first."""

    def give(text: str) -> None:
        said.write(json.dumps(text, ensure_ascii=False)[1:-1])

    if types == TEXT | {"null"}:
        ahead = yield from feed.peek(NULL_CHARS)
        if not ahead.startswith(("null", "None")):
            types = TEXT
    if types == TEXT:
        said.write('"')
        yield from feed.until(ENDS, give)
        said.write('"')
        return
    found: list[str] = []
    yield from feed.until(ENDS, found.append)
    said.write(typed("".join(found), types))


def blocks(lark: Lark, tools: ToolList, most: int) -> str:
    """The grammar of calls in their outer tags."""
    one = either(
        lark.between(f"<tool_call>\n{FUNCTION}{name}>\n", _arguments(lark, schema))
        for name, schema in functions(tools)
    )
    return lark.several(f"{one} {lark.text(END)}", most, between="\n")


def _arguments(lark: Lark, schema: Schema) -> str:
    try:
        return members(lark, schema, lambda key, inner: _parameter(lark, key, inner, schema))
    except NotPlain:
        return f"{lark.json(schema)} {lark.text(BREAK)}"


def _parameter(lark: Lark, key: str, schema: Schema, whole: Schema) -> str:
    found = list(choices(schema, whole))
    kinds = [each.get("type") for each in found if "const" not in each]
    if "string" in kinds or None in kinds:  # text, and whatever that shows to be when it is read
        if any(each.keys() - SAYS_NOTHING - {"type"} for each in found):
            raise NotPlain
        value = lark.until(VALUE_END, *ENDS[1:])
    else:
        value = either(_choice(lark, each, found, whole) for each in found)
        value += f" {lark.text(VALUE_END)}"
    return lark.between(f"{PARAMETER}{plain_key(key, KEY)}>\n", value)


def _choice(lark: Lark, choice: Schema, found: list[Schema], whole: Schema) -> str:
    text = choice.get("const")
    if choice.get("type") == "boolean":
        return BOOLEAN
    if not isinstance(text, str):
        return own_words(lark, choice, whole)
    readable = all(isinstance(each.get("const"), str) or each in NULLS for each in found)
    if not readable or any(end in text for end in ENDS):
        raise NotPlain
    return lark.text(text)

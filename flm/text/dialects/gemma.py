"""Gemma 4 and FunctionGemma: call:NAME{key:value} between tags, strings in quotes of their own.

Gemma 3, which no template tells of tools, was taught to write Python into a block of tool_code.
"""

import re
from functools import partial

from flm.core.chat import is_function_name
from flm.text.dialects.calls import Said, Syntax
from flm.text.dialects.dialect import ToolList
from flm.text.dialects.feed import Feed, NotACall, Parse
from flm.text.dialects.objects import BLANK, listed
from flm.text.dialects.pythonic import python_call, written_call
from flm.text.dialects.shapes import (
    DEPTH_MAX,
    SAYS_NOTHING,
    NotPlain,
    Schema,
    choices,
    functions,
    members,
    plain_key,
    scalar,
)
from flm.text.dialects.tagged import tagged
from flm.text.dialects.values import value
from flm.text.lark import Lark, either

FENCE, FENCE_END = "```tool_code", "```"
KEY = re.compile(r"[\w.-]+")


def read_tagged(feed: Feed, said: Said, *, opens: str, closes: str, quote: str) -> Parse[None]:
    yield from feed.skip(opens)
    feed.closers = (closes,)
    yield from feed.space()
    if not (yield from feed.skip("call:")):
        raise NotACall
    yield from feed.space()
    name = yield from feed.word("-.")
    if not is_function_name(name):
        raise NotACall
    yield from feed.space()
    if not (yield from feed.sees("{")):
        raise NotACall
    said.begin(name)
    feed.free()
    yield from value(feed, said.write, raw=quote)
    yield from feed.skip_all(BLANK + "}")
    yield from feed.skip(closes)


def read_fenced(feed: Feed, said: Said) -> Parse[None]:
    yield from feed.skip(FENCE)
    feed.closers = (FENCE_END,)
    yield from listed(feed, said, _printed)
    yield from feed.skip_all(BLANK)
    yield from feed.skip(FENCE_END)


def _printed(feed: Feed, said: Said) -> Parse[None]:
    printed = yield from feed.skip("print(")
    yield from python_call(feed, said)
    if printed:
        yield from feed.skip(")")


def tagged_calls(
    lark: Lark, tools: ToolList, most: int, *, opens: str, closes: str, quote: str
) -> str:
    ways = []
    for name, schema in functions(tools):
        try:
            arguments = _object(lark, schema, schema, quote, DEPTH_MAX)
        except NotPlain:
            arguments = lark.json(schema)
        ways.append(lark.between(f"{opens}call:{name}", arguments, closes))
    return lark.several(either(ways), most)


def fenced_calls(lark: Lark, tools: ToolList, most: int) -> str:
    one = either(written_call(lark, *function) for function in functions(tools))
    return lark.between(f"{FENCE}\n", lark.several(one, most, between="\n"), f"\n{FENCE_END}")


def _object(lark: Lark, schema: Schema, whole: Schema, quote: str, depth: int) -> str:
    def member(key: str, inner: Schema) -> str:
        return lark.between(f"{plain_key(key, KEY)}:", _value(lark, inner, whole, quote, depth - 1))

    return lark.between("{", members(lark, schema, member, between=","), "}")


def _value(lark: Lark, schema: Schema, whole: Schema, quote: str, depth: int) -> str:
    if not depth:
        raise NotPlain
    ways = []
    for choice in choices(schema, whole):
        text = choice.get("const")
        if isinstance(text, str):
            if quote in text:
                raise NotPlain
            ways.append(lark.text(f"{quote}{text}{quote}"))
        elif choice == {**choice, "type": "object"}:
            ways.append(_object(lark, choice, whole, quote, depth))
        elif choice.keys() - SAYS_NOTHING == {"type", "items"} and choice["type"] == "array":
            one = lark.rule(_value(lark, choice["items"], whole, quote, depth - 1))
            ways.append(f'"[" ({one} ("," {one})*)? "]"')
        elif choice.keys() - SAYS_NOTHING == {"type"} and choice["type"] == "string":
            ways.append(lark.between(quote, lark.until(quote)))
        else:
            ways.append(scalar(lark, choice))
    return either(ways)


def _between(opens: str, closes: str, quote: str) -> Syntax:
    return Syntax(partial(read_tagged, opens=opens, closes=closes, quote=quote), opens=(opens,))


G4 = ("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION = ("<start_function_call>", "<end_function_call>", "<escape>")
GEMMA4 = tagged(
    "gemma4",
    _between(*G4),
    marks=G4,
    calls=partial(tagged_calls, opens=G4[0], closes=G4[1], quote=G4[2]),
    thought=("<|channel>thought", "<channel|>"),
    thought_marks=("<|channel>", "<channel|>"),
)
FUNCTION_GEMMA = tagged(
    "functiongemma",
    _between(*FUNCTION),
    marks=FUNCTION,
    calls=partial(tagged_calls, opens=FUNCTION[0], closes=FUNCTION[1], quote=FUNCTION[2]),
)
GEMMA3 = tagged("gemma3", Syntax(read_fenced, opens=(FENCE,)), marks=(), calls=fenced_calls)

"""Gemma 4 and FunctionGemma: call:NAME{key:value} between tags, strings in quotes of their own.

Gemma 3, which no template tells of tools, was taught to write Python into a block of tool_code.
"""

from functools import partial

from flm.core.chat import is_function_name
from flm.text.dialects.calls import Grammar, Said
from flm.text.dialects.feed import Feed, NotACall, Parse
from flm.text.dialects.objects import BLANK, listed
from flm.text.dialects.pythonic import python_call
from flm.text.dialects.tagged import tagged
from flm.text.dialects.values import value

FENCE, FENCE_END = "```tool_code", "```"


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


def _between(opens: str, closes: str, quote: str) -> Grammar:
    return Grammar(partial(read_tagged, opens=opens, closes=closes, quote=quote), opens=(opens,))


G4 = ("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION = ("<start_function_call>", "<end_function_call>", "<escape>")
GEMMA4 = tagged(
    "gemma4",
    _between(*G4),
    marks=G4,
    thought=("<|channel>thought", "<channel|>"),
    thought_marks=("<|channel>", "<channel|>"),
)
FUNCTION_GEMMA = tagged("functiongemma", _between(*FUNCTION), marks=FUNCTION)
GEMMA3 = tagged("gemma3", Grammar(read_fenced, opens=(FENCE,)), marks=())

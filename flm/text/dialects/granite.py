"""Granite 3: <|tool_call|> and a list of JSON objects; nothing closes it."""

from flm.text.dialects.calls import Said, Syntax
from flm.text.dialects.dialect import ToolList
from flm.text.dialects.feed import Feed, Parse
from flm.text.dialects.objects import BLANK, call, listed
from flm.text.dialects.shapes import named_calls
from flm.text.dialects.tagged import tagged
from flm.text.lark import Lark

OPENS, ALSO = "<|tool_call|>", "<tool_call>"


def read(feed: Feed, said: Said) -> Parse[None]:
    yield from feed.skip(OPENS, ALSO)
    yield from feed.skip_all(BLANK)
    if (yield from feed.sees("{")):
        yield from call(feed, said)
    else:
        yield from listed(feed, said, call)


def calls(lark: Lark, tools: ToolList, most: int) -> str:
    listed = lark.several(named_calls(lark, tools, "arguments"), most, between=", ")
    return lark.between(f"{OPENS}[", listed, "]")


GRANITE = tagged("granite", Syntax(read, opens=(OPENS, ALSO)), marks=(OPENS, ALSO), calls=calls)

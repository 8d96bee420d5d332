"""Phi-4: <|tool_call|>[{...}]<|/tool_call|>, or functools[{...}]."""

from flm.text.dialects.calls import Said, Syntax
from flm.text.dialects.dialect import ToolList
from flm.text.dialects.feed import Feed, NotACall, Parse
from flm.text.dialects.objects import BLANK, call, listed
from flm.text.dialects.shapes import named_calls
from flm.text.dialects.tagged import tagged
from flm.text.lark import Lark

OPENS, CLOSES, PLAIN = "<|tool_call|>", "<|/tool_call|>", "functools["


def read(feed: Feed, said: Said) -> Parse[None]:
    if not (yield from feed.skip(OPENS, "functools")):
        raise NotACall
    feed.closers = (CLOSES,)
    yield from listed(feed, said, call)
    yield from feed.skip_all(BLANK)
    yield from feed.skip(CLOSES)


def calls(lark: Lark, tools: ToolList, most: int) -> str:
    listed = lark.several(named_calls(lark, tools, "arguments"), most, between=", ")
    return lark.between(f"{OPENS}[", listed, f"]{CLOSES}")


PHI = tagged("phi", Syntax(read, opens=(OPENS, PLAIN)), marks=(OPENS, CLOSES), calls=calls)

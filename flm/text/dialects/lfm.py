"""LFM2: <|tool_call_start|>[f(a=1), g(b="x")]<|tool_call_end|>, or a list of JSON objects."""

from flm.text.dialects.calls import Said, Syntax
from flm.text.dialects.dialect import ToolList
from flm.text.dialects.feed import Feed, Parse
from flm.text.dialects.objects import BLANK, call, listed
from flm.text.dialects.pythonic import python_call, written_call
from flm.text.dialects.shapes import NotPlain, functions, named_calls
from flm.text.dialects.tagged import tagged
from flm.text.lark import Lark, either

OPENS, CLOSES = "<|tool_call_start|>", "<|tool_call_end|>"


def read(feed: Feed, said: Said) -> Parse[None]:
    yield from feed.skip(OPENS)
    feed.closers = (CLOSES,)
    yield from listed(feed, said, _either)
    yield from feed.skip_all(BLANK)
    yield from feed.skip(CLOSES)


def _either(feed: Feed, said: Said) -> Parse[None]:
    yield from (call if (yield from feed.sees("{")) else python_call)(feed, said)


def calls(lark: Lark, tools: ToolList, most: int) -> str:
    try:
        one = either([written_call(lark, *function) for function in functions(tools)])
    except NotPlain:
        one = named_calls(lark, tools, "arguments")
    return lark.between(f"{OPENS}[", lark.several(one, most, between=", "), f"]{CLOSES}")


LFM = tagged("lfm", Syntax(read, opens=(OPENS,)), marks=(OPENS, CLOSES), calls=calls)

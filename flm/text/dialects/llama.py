"""Llama 3: {"name": ..., "parameters": {...}} as the reply's beginning, <|python_tag|> or not."""

from flm.text.dialects.calls import Said, Syntax
from flm.text.dialects.dialect import ToolList
from flm.text.dialects.feed import Feed, Parse
from flm.text.dialects.objects import BLANK, call, known_call
from flm.text.dialects.qwen import FUNCTION, function
from flm.text.dialects.shapes import named_calls
from flm.text.dialects.tagged import tagged
from flm.text.lark import Lark

TAG = "<|python_tag|>"


def read(feed: Feed, said: Said) -> Parse[None]:
    if (yield from feed.sees(FUNCTION)):  # as its makers' own examples have custom tools
        yield from function(feed, said, sure=False)
        return
    read_one = call if (yield from feed.skip(TAG)) else known_call
    yield from feed.space()
    while True:
        yield from read_one(feed, said)
        feed.hold()
        yield from feed.skip_all(BLANK + ",;")
        if not (yield from feed.sees("{")):
            feed.back()
            return


def calls(lark: Lark, tools: ToolList, most: int) -> str:
    """One: its templates take no more of a reply."""
    return named_calls(lark, tools, "parameters")


LLAMA = tagged("llama", Syntax(read, opens=(TAG, FUNCTION), bare="{"), marks=(TAG,), calls=calls)

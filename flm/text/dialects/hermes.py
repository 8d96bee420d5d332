"""Hermes and Qwen3: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, also Granite 4."""

from flm.text.dialects.calls import Said, Syntax
from flm.text.dialects.dialect import ToolList
from flm.text.dialects.feed import Feed, Parse
from flm.text.dialects.objects import BLANK, call, listed
from flm.text.dialects.qwen import blocks, function
from flm.text.dialects.shapes import named_calls
from flm.text.dialects.tagged import tagged
from flm.text.lark import Lark

OPENS, CLOSES = "<tool_call>", "</tool_call>"


def read(feed: Feed, said: Said) -> Parse[None]:
    """A block, whatever is in it: fine-tuned models write what another model's template asks."""
    opened = yield from feed.skip(OPENS)
    feed.closers = (CLOSES,)
    yield from feed.space()
    if (yield from feed.sees("[")):
        yield from listed(feed, said, call)
    elif (yield from feed.sees("<")):
        yield from function(feed, said, sure=opened)
    else:
        yield from call(feed, said)
    yield from feed.skip_all(BLANK + "}")
    yield from feed.skip(CLOSES)


def calls(lark: Lark, tools: ToolList, most: int) -> str:
    one = lark.between(f"{OPENS}\n", named_calls(lark, tools, "arguments"), f"\n{CLOSES}")
    return lark.several(one, most, between="\n")


HERMES = tagged("hermes", Syntax(read, opens=(OPENS,)), marks=(OPENS, CLOSES), calls=calls)
# Its calls may lack the outer tag.
QWEN = tagged(
    "qwen",
    Syntax(read, opens=(OPENS, "<function=")),
    marks=(OPENS, CLOSES),
    calls=blocks,
)

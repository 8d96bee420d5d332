"""gpt-oss: a reply is messages, each with a header that says for what and for whom it is.

<|channel|>analysis<|message|>A thought.<|end|><|start|>assistant<|channel|>commentary
to=functions.NAME <|constrain|>json<|message|>{...}<|call|> and <|channel|>final<|message|>Content.
"""

import re

from flm.core.chat import Delta, is_function_name
from flm.text.dialects.calls import Said
from flm.text.dialects.dialect import Dialect, ToolList
from flm.text.dialects.feed import Feed, NotACall, Parse
from flm.text.dialects.shapes import functions
from flm.text.dialects.values import value
from flm.text.lark import Lark, either

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
THOUGHT, FUNCTIONS = "analysis", "functions."
NEXT = (*ENDS, START, CHANNEL)
BETWEEN = "\n\n"  # messages of a kind
HEADERS = (
    START,
    CHANNEL,
    MESSAGE,
    *(f"{role}to={FUNCTIONS}" for role in ("", " ", "assistant ")),
    f"assistant{CHANNEL}",
)
_WORDS = re.compile(r"<\|\w+\|>(assistant|analysis|commentary|final|json)?|\bto=\S+")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


class HarmonyReader:
    def __init__(self, tools: ToolList, thinking: bool) -> None:
        self.thinking = thinking
        self._calls = bool(tools)
        self._feed, self._said = Feed(), Said(tools)
        self._thought = False  # whether one was said
        self._parse = self._read()

    def add(self, text: str) -> list[Delta]:
        self._feed.add(text)
        next(self._parse, None)
        return self._said.take()

    def finish(self, *, cut: bool = False) -> list[Delta]:
        self._feed.ended, self._said.cut = True, cut
        next(self._parse, None)
        return self._said.take()

    def _read(self) -> Parse[None]:
        feed = self._feed
        while (yield from feed.peek()):
            if (yield from self._begins()):
                header = yield from self._header()
                channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
                yield from self._body(
                    channel[1] if channel else "", recipient[1] if recipient else ""
                )
            else:
                yield from self._body("", "")
            while (yield from feed.skip(*ENDS)):
                yield from feed.space()
        self._said.finish()

    def _begins(self) -> Parse[bool]:
        """Whether a header stands here; else the model just talks."""
        for mark in HEADERS:
            if (yield from self._feed.sees(mark)):
                return True
        return False

    def _header(self) -> Parse[str]:
        """Up to the message. Without one, what is more than a header is content."""
        found: list[str] = []
        yield from self._feed.until((MESSAGE, *ENDS), found.append)
        header = "".join(found)
        if not (yield from self._feed.skip(MESSAGE)) and not self._said.cut:
            self._said.content(_WORDS.sub("", header).strip())
        return header

    def _body(self, channel: str, recipient: str) -> Parse[None]:
        feed, said = self._feed, self._said
        name = recipient.removeprefix(FUNCTIONS)
        wanted = recipient.startswith(FUNCTIONS) or name in said.schemas
        if self._calls and wanted and is_function_name(name):
            yield from self._call(name)
            return
        between = BETWEEN if (self._thought if channel == THOUGHT else said.spoken) else ""

        def give(text: str) -> None:
            nonlocal between
            if not text:
                return
            if channel == THOUGHT:
                said.reasoning(between + text)
                self._thought = True
            else:
                said.content(between + text)
            between = ""

        self.thinking = channel == THOUGHT
        yield from feed.until(NEXT, give)
        self.thinking = False

    def _call(self, name: str) -> Parse[None]:
        feed, said = self._feed, self._said
        try:
            said.begin(name)
        except NotACall:
            return
        feed.closers = NEXT
        yield from feed.space()
        if (yield from feed.next()):
            yield from value(feed, said.write)
        else:
            said.write("{}")
        yield from feed.space()
        feed.closers = ()


def calls(lark: Lark, tools: ToolList, most: int) -> str:
    """One: <|call|> ends the reply."""
    return either(
        lark.between(
            f"{CHANNEL}commentary to={FUNCTIONS}{name} {CONSTRAIN}json{MESSAGE}", lark.json(schema)
        )
        for name, schema in functions(tools)
    )


HARMONY = Dialect(
    "harmony",
    HarmonyReader,
    marks=(START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS),
    thought=(f"{CHANNEL}{THOUGHT}{MESSAGE}", f"<|end|>{START}assistant"),
    answer=f"{CHANNEL}final{MESSAGE}",
    calls=calls,
)

"""Where another prompt may part from this one, found by rendering how conversations go on.

Each boundary is the longest common prefix, in token ids, of this prompt and those of other
conversations: with the same system messages and tools (head); this one, after a reply and a new
user message (turn); this one, after a tool call and its result (opener). So any template works, and
none is known here. What a template refuses to render drops its boundary, never the request.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from threading import Lock

from flm.core.alike import common_length
from flm.core.chat import Conversation, Message, ToolCall
from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.errors import FlmError
from flm.prefix.encoder import Encoder
from flm.text.template import ChatTemplate
from flm.text.tokenizer import Tokenizer

HEADS_MAX = 16  # remembered

# First user messages that have nothing in common.
_FIRST = ("Which way?", "7 + 3")
_TURN = (Message("assistant", "Done."), Message("user", "And now?"))
_STEP = (
    Message("assistant", None, tool_calls=(ToolCall("call_0", "look", "{}"),)),
    Message("tool", "found", tool_call_id="call_0", name="look"),
)
# Where several fall on one offset, the one that serves longest names it.
_ORDER = (BoundaryKind.HEAD, BoundaryKind.TURN, BoundaryKind.OPENER, BoundaryKind.END)


@dataclass(frozen=True, slots=True)
class Head:
    """How conversations begin that have the system messages and tools of `stem`."""

    stem: Conversation
    common: str
    endings: tuple[str, ...]  # how some of them go on


def text_prompt(tokens: Sequence[int]) -> Prompt:
    """The prompt of a plain completion: only its end is known to be worth keeping."""
    return Prompt(tuple(tokens), (Boundary(len(tokens), BoundaryKind.END),))


class BoundaryFinder:
    """For one model. Safe to use from several threads."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._template = template
        self._encoder = Encoder(tokenizer)
        self._heads: list[Head] = []  # the youngest last
        self._lock = Lock()

    def find(
        self, conversation: Conversation, *, now: datetime, length_max: int | None = None
    ) -> Prompt:
        """The conversation as the model reads it, with its boundaries.

        All is rendered as of `now`. A prompt longer than `length_max` tokens is for refusing, so
        only its end is found. Raises BadRequest where the template refuses the conversation.
        """
        text = self._template.render(conversation, now=now)
        encoded = self._encoder.encode(text)
        tokens = encoded.tokens
        if length_max is not None and len(tokens) > length_max:
            return text_prompt(tokens)
        found = {BoundaryKind.END: len(tokens)}
        for kind, others in self._others(conversation, text, now):
            found[kind] = min(self._encoder.alike(encoded, other) for other in others)
        kinds = {found[kind]: kind for kind in reversed(_ORDER) if found.get(kind)}
        return Prompt(tuple(tokens), tuple(Boundary(at, kinds[at]) for at in sorted(kinds)))

    def _others(
        self, conversation: Conversation, text: str, now: datetime
    ) -> Iterator[tuple[BoundaryKind, Sequence[str]]]:
        """By the boundary where they part from this one: texts of other conversations."""
        if head := self._head(conversation, text, now):
            yield BoundaryKind.HEAD, [head.common + ending for ending in head.endings]
        futures = [(BoundaryKind.TURN, _TURN)]
        if conversation.tools or any(message.role == "tool" for message in conversation.messages):
            futures.append((BoundaryKind.OPENER, _STEP))
        for kind, more in futures:
            if future := self._render(conversation, (*conversation.messages, *more), now):
                yield kind, (future,)

    def _head(self, conversation: Conversation, text: str, now: datetime) -> Head | None:
        """Remembered, for a chat comes back with it; rendered anew if its text has changed."""
        system = tuple(takewhile(lambda message: message.role == "system", conversation.messages))
        if not (system or conversation.tools):
            return None
        stem = replace(conversation, messages=system)
        with self._lock:
            heads = list(self._heads)
        alike = (head for head in heads if head.stem == stem and text.startswith(head.common))
        head = next(alike, None) or self._new_head(stem, now)
        with self._lock:
            others = [each for each in self._heads if each.stem != stem]
            self._heads = [*others, head][-HEADS_MAX:]
        return head

    def _new_head(self, stem: Conversation, now: datetime) -> Head:
        users = (Message("user", first) for first in _FIRST)
        one, other = (self._render(stem, (*stem.messages, user), now) for user in users)
        length = common_length(one, other)
        # A line break likes to merge with one before it: so would a message that begins with one.
        return Head(stem, one[:length], (one[length:], "\n\n"))

    def _render(
        self, conversation: Conversation, messages: tuple[Message, ...], now: datetime
    ) -> str:
        """Empty where the template refuses them."""
        try:
            return self._template.render(replace(conversation, messages=messages), now=now)
        except FlmError:
            return ""

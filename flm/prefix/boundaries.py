"""Where another prompt may part from this one, found by rendering how conversations go on.

Each boundary is the longest common prefix, in token ids, of this prompt and those of other
conversations: with the same system messages and tools (head); this one, after a reply and a new
user message (turn); this one, after a tool call and its result (opener); this one, with another
text from a mark of the client's on (hint). So any template works, and none is known here. What a
template refuses to render drops its boundary, never the request.

What may be read ahead is found alike: what all that go on from a reply begin with.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from threading import Lock

from flm.core.alike import common_length
from flm.core.chat import Conversation, Message, ToolCall
from flm.core.picture import Sight, expanded
from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.errors import FlmError
from flm.prefix.encoder import CHARS_MAX, Encoder
from flm.prefix.shown import Shown, with_pictures
from flm.text.template import ChatTemplate, texts
from flm.text.tokenizer import Tokenizer

HEADS_MAX = 16  # remembered
HINTS_MAX = 4  # of a conversation: its last marks

# First user messages that have nothing in common.
_FIRST = ("Which way?", "7 + 3")
# It likes to merge with one before it: so would a message that begins with one.
_LINE_BREAK = "\n\n"
_TURN = (Message("assistant", "Done."), Message("user", "And now?"))
_STEP = (
    Message("assistant", None, tool_calls=(ToolCall("call_0", "look", "{}"),)),
    Message("tool", "found", tool_call_id="call_0", name="look"),
)
# Where several fall on one offset, the one that serves longest names it.
_ORDER = (
    BoundaryKind.HEAD,
    BoundaryKind.HINT,
    BoundaryKind.TURN,
    BoundaryKind.OPENER,
    BoundaryKind.END,
)


@dataclass(frozen=True, slots=True)
class Head:
    """How conversations begin that have the system messages and tools of `stem`."""

    stem: Conversation
    domain: str
    common: str
    endings: tuple[str, ...]  # how some of them go on


def text_prompt(tokens: Sequence[int], *, domain: str = "") -> Prompt:
    """The prompt of a plain completion: only its end is known to be worth keeping."""
    return Prompt(tuple(tokens), (Boundary(len(tokens), BoundaryKind.END),), domain)


class BoundaryFinder:
    """For one model, and how it sees. Safe to use from several threads. `chars_max` of prompts are
    remembered.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        *,
        chars_max: int = CHARS_MAX,
        sight: Sight | None = None,
    ) -> None:
        self._template = template
        self._sight = sight
        self._mark = tokenizer.added.get(sight.mark) if sight else None
        self._encoder = Encoder(tokenizer, chars_max=chars_max)
        self._heads: list[Head] = []  # the youngest last
        self._lock = Lock()

    def find(
        self,
        conversation: Conversation,
        *,
        now: datetime,
        domain: str = "",
        length_max: int | None = None,
    ) -> Prompt:
        """The conversation as the model reads it, with its boundaries.

        All is rendered as of `now`. A prompt longer than `length_max` tokens is for refusing, so
        only its end is found. Raises BadRequest where the template refuses the conversation.
        """
        shown = Shown(self._sight, self._mark)
        text = shown.text(self._template.render(conversation, now=now), conversation.messages)
        if any(each.pictures for each in conversation.messages):
            shown.require_own(texts(conversation))
        encoded = self._encoder.encode(text, domain=domain)
        pictures = shown.placed(encoded.tokens, conversation.messages)
        tokens = with_pictures(encoded.tokens, pictures)
        if length_max is not None and len(tokens) > length_max:
            return text_prompt(tokens, domain=domain)
        found = [(BoundaryKind.END, len(encoded.tokens))]
        for kind, others in self._others(conversation, text, now, domain, shown):
            found.append((kind, min(self._encoder.alike(encoded, other) for other in others)))
        found.sort(key=lambda each: _ORDER.index(each[0]), reverse=True)
        kinds = {expanded(offset, pictures): kind for kind, offset in found if offset}
        boundaries = tuple(Boundary(offset, kinds[offset]) for offset in sorted(kinds))
        return Prompt(tokens, boundaries, domain, pictures)

    def ahead(
        self,
        conversation: Conversation,
        *,
        now: datetime,
        domain: str = "",
        length_max: int | None = None,
    ) -> Prompt | None:
        """What every prompt begins with that goes on from `conversation`, whose last message is the
        reply: its one boundary is its end.

        None where nothing does: it is longer than `length_max`, or the template refuses.
        """
        messages, shown = conversation.messages, Shown(self._sight, self._mark)
        futures = (_going_on(messages[-1], text) for text in _FIRST)
        one, other = (
            self._render(conversation, (*messages, *more), now, shown) for more in futures
        )
        common = one[: common_length(one, other)]
        if not common:
            return None
        encoded = self._encoder.encode(one, domain=domain)
        others = (other, common + _LINE_BREAK)
        alike = min(self._encoder.alike(encoded, other) for other in others)
        pictures = shown.placed(encoded.tokens, messages)
        length = expanded(alike, pictures)
        if not length or (length_max is not None and length > length_max):
            return None
        kind = BoundaryKind.OPENER if messages[-1].tool_calls else BoundaryKind.TURN
        tokens = with_pictures(encoded.tokens, pictures)[:length]
        pictures = tuple(each for each in pictures if each.end <= length)
        return Prompt(tokens, (Boundary(length, kind),), domain, pictures)

    def _others(
        self, conversation: Conversation, text: str, now: datetime, domain: str, shown: Shown
    ) -> Iterator[tuple[BoundaryKind, Sequence[str]]]:
        """By the boundary where they part from this one: texts of other conversations."""
        if head := self._head(conversation, text, now, domain, shown):
            yield BoundaryKind.HEAD, [head.common + ending for ending in head.endings]
        for messages in _parting(conversation.messages):
            if other := self._render(conversation, messages, now, shown):
                common = text[: common_length(text, other)]
                yield BoundaryKind.HINT, (other, common + _LINE_BREAK)
        futures = [(BoundaryKind.TURN, _TURN)]
        if conversation.tools or any(message.role == "tool" for message in conversation.messages):
            futures.append((BoundaryKind.OPENER, _STEP))
        for kind, more in futures:
            messages = (*conversation.messages, *more)
            if future := self._render(conversation, messages, now, shown):
                yield kind, (future,)

    def _head(
        self, conversation: Conversation, text: str, now: datetime, domain: str, shown: Shown
    ) -> Head | None:
        """Remembered, for a chat comes back with it; rendered anew if its text has changed."""
        system = tuple(takewhile(lambda message: message.role == "system", conversation.messages))
        if not (system or conversation.tools):
            return None
        stem = replace(conversation, messages=system)
        with self._lock:
            heads = list(self._heads)
        known = [head for head in heads if head.stem == stem and head.domain == domain]
        alike = (head for head in known if text.startswith(head.common))
        head = next(alike, None) or self._new_head(stem, now, domain, shown)
        with self._lock:
            others = [each for each in self._heads if each not in known]
            self._heads = [*others, head][-HEADS_MAX:]
        return head

    def _new_head(self, stem: Conversation, now: datetime, domain: str, shown: Shown) -> Head:
        users = (Message("user", first) for first in _FIRST)
        one, other = (self._render(stem, (*stem.messages, user), now, shown) for user in users)
        length = common_length(one, other)
        return Head(stem, domain, one[:length], (one[length:], _LINE_BREAK))

    def _render(
        self,
        conversation: Conversation,
        messages: tuple[Message, ...],
        now: datetime,
        shown: Shown,
    ) -> str:
        """Empty where the template refuses them."""
        try:
            text = self._template.render(replace(conversation, messages=messages), now=now)
            return shown.text(text, messages)
        except FlmError:
            return ""


def _going_on(reply: Message, text: str) -> tuple[Message, ...]:
    """What comes after a reply and says `text`: the results of its tool calls, or else the user."""
    if not reply.tool_calls:
        return (Message("user", text),)
    return tuple(
        Message("tool", text, tool_call_id=call.id, name=call.name) for call in reply.tool_calls
    )


def _parting(messages: tuple[Message, ...]) -> Iterator[tuple[Message, ...]]:
    """For each of the last marks: conversations that go on with another text after it.

    At a message's end that is the next message. At the end of all it is the future: turn, opener.
    """
    marks = [(index, mark) for index, each in enumerate(messages) for mark in each.marks]
    for index, mark in marks[-HINTS_MAX:]:
        message = messages[index]
        start, after = (message.content or "")[:mark], (message.content or "")[mark:]
        if not after:
            index += 1
            if index == len(messages):
                return
            message = replace(messages[index], reasoning=None)
            start, after = "", message.content or ""
        text = next(first for first in _FIRST if first[0] != after[:1])
        shown = tuple(each for each in message.pictures if each[0] <= len(start))
        other = replace(message, content=start + text, tool_calls=(), pictures=shown)
        yield (*messages[:index], other, *messages[index + 1 :])

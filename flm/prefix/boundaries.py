"""Where another prompt may part from this one, found by rendering how it may go on.

Each boundary is the longest common prefix, in token ids, of this prompt and the prompt of another
conversation: one with the same system messages and tools (head), this one after a reply and a new
user message (turn), this one after a tool call and its result (opener). So any template works, and
none is known here.

Texts are compared first. Special tokens are never merged with what is around them, so both texts
have the same tokens up to the last one before they part; only from there is the other encoded.
"""

import re
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from threading import Lock

from flm.core.chat import Conversation, Message, ToolCall
from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.errors import FlmError
from flm.text.template import ChatTemplate
from flm.text.tokenizer import Tokenizer

HEADS_MAX = 64  # remembered

# Two user messages that agree in nothing, so that what their prompts share is the head.
_USERS = (Message("user", "Which way?"), Message("user", "7 + 3"))
_TURN = (Message("assistant", "Done."), Message("user", "And now?"))
_CALL = ToolCall("call_0", "look", "{}")
_OPENER = (
    Message("assistant", None, tool_calls=(_CALL,)),
    Message("tool", "found", tool_call_id="call_0", name="look"),
)
# Where several fall on one offset, the one that serves longest names it.
_ORDER = (BoundaryKind.HEAD, BoundaryKind.TURN, BoundaryKind.OPENER, BoundaryKind.END)


@dataclass(frozen=True, slots=True)
class Parting:
    """Another conversation's text, and how many characters it has in common with this one's."""

    kind: BoundaryKind
    text: str
    common: int


def text_prompt(tokens: Sequence[int]) -> Prompt:
    """The prompt of a plain completion: only its end is known to be worth keeping."""
    return Prompt(tuple(tokens), (Boundary(len(tokens), BoundaryKind.END),))


class BoundaryFinder:
    """For one model. Safe to use from several threads."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer
        names = sorted((tokenizer.piece(id_) for id_ in tokenizer.special_ids), key=len)
        self._special = re.compile("|".join(re.escape(name) for name in reversed(names) if name))
        self._heads: OrderedDict[Hashable, tuple[str, str]] = OrderedDict()
        self._lock = Lock()

    def find(self, conversation: Conversation, *, now: datetime) -> Prompt:
        """The conversation as the model reads it, with its boundaries.

        Raises BadRequest when the template refuses the conversation itself; a future that it
        refuses only drops a boundary.
        """
        text = self._template.render(conversation, now=now)
        partings = list(self._partings(conversation, text, now))
        specials = [match.span() for match in self._special.finditer(text)]
        starts = {parting: _last_start(specials, parting.common) for parting in partings}
        tokens, offsets = self._encode(text, sorted({0, *starts.values()}))
        kinds = {len(tokens): BoundaryKind.END} if tokens else {}
        for parting, start in starts.items():
            offset = self._offset(parting, start, tokens, offsets[start])
            if offset:
                kinds[offset] = min(parting.kind, kinds.get(offset, parting.kind), key=_ORDER.index)
        return Prompt(tuple(tokens), tuple(Boundary(at, kinds[at]) for at in sorted(kinds)))

    def _partings(self, conversation: Conversation, text: str, now: datetime) -> Iterator[Parting]:
        for kind, ending in ((BoundaryKind.TURN, _TURN), (BoundaryKind.OPENER, _OPENER)):
            messages = (*conversation.messages, *ending)
            if future := self._render(replace(conversation, messages=messages), now):
                yield Parting(kind, future, common_length(text, future))
        if head := self._head(conversation, text, now):
            yield head

    def _head(self, conversation: Conversation, text: str, now: datetime) -> Parting | None:
        system = tuple(takewhile(lambda message: message.role == "system", conversation.messages))
        if not (system or conversation.tools):
            return None
        # Tools are not in the key, for a head that has other ones does not begin this text.
        options = sorted(conversation.template_kwargs.items(), key=lambda item: item[0])
        key = (system, conversation.thinking, conversation.reasoning_effort, repr(options))
        with self._lock:
            head, future = self._heads.get(key, ("", ""))
        if not head or not text.startswith(head):
            alone = replace(conversation, messages=system)
            futures = [
                self._render(replace(alone, messages=(*system, user)), now) for user in _USERS
            ]
            future = futures[0]
            head = future[: common_length(*futures)]
            with self._lock:
                self._heads[key] = (head, future)
                self._heads.move_to_end(key)
                while len(self._heads) > HEADS_MAX:
                    self._heads.popitem(last=False)
        common = common_length(text, head)
        return Parting(BoundaryKind.HEAD, future, common) if common else None

    def _render(self, conversation: Conversation, now: datetime) -> str:
        """Empty when the template refuses it."""
        try:
            return self._template.render(conversation, now=now)
        except FlmError:
            return ""

    def _encode(self, text: str, starts: Sequence[int]) -> tuple[list[int], dict[int, int]]:
        """All tokens, and how many come before each of `starts`, where a special token stands."""
        tokens: list[int] = []
        offsets = {}
        for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
            offsets[start] = len(tokens)
            tokens += self._tokenizer.encode(text[start:end])
        return tokens, offsets

    def _offset(self, parting: Parting, start: int, tokens: list[int], offset: int) -> int:
        """Tokens that both have in common; they agree in the `offset` before `start`."""
        # Up to the next special token after the parting, and that one: more cannot matter.
        after = self._special.search(parting.text, parting.common)
        end = after.end() if after else len(parting.text)
        others = self._tokenizer.encode(parting.text[start:end])
        if parting.kind is BoundaryKind.HEAD:
            others = others[: self._head_length(parting, start)]
        return offset + common_length(tokens[offset : offset + len(others)], others)

    def _head_length(self, parting: Parting, start: int) -> int:
        """A probe's own first words must not count, should this prompt begin alike."""
        return len(self._tokenizer.encode(parting.text[start : parting.common]))


def _last_start(specials: Sequence[tuple[int, int]], common: int) -> int:
    """Where the last special token that lies wholly before `common` begins, or 0."""
    return max((start for start, end in specials if end <= common), default=0)


def common_length(left: str | list[int], right: str | list[int]) -> int:
    """How many items both begin with: halving over compares of slices, which run in C."""
    same, differ = 0, min(len(left), len(right))
    if left[:differ] == right[:differ]:
        return differ
    while differ - same > 1:
        middle = (same + differ) // 2
        if left[same:middle] == right[same:middle]:
            same = middle
        else:
            differ = middle
    return same

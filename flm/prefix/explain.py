"""Why a prompt is read again: what differs from the likest earlier one, where, and what to do.

Nothing is explained unless at least `gain_min` tokens are read, and one of these holds:

  a. *lost*: at least `gain_min` tokens more were read than can be reused, or would have been, had
     their request not been cancelled or failed;
  b. *head*: the prompt parts from an earlier one within its system messages and tools, of which
     the earlier one shares half, or goes on with the same later;
  c. *history*: it parts in a message, and what was seen goes on with the message that follows.

So a first prompt, a next turn, a reply tried again and a new conversation with a known head have no
explanation. Where b or c holds, the difference is explained, and what was lost before it beside.
"""

from bisect import bisect_right
from dataclasses import dataclass

from flm.core.alike import common_length
from flm.core.chat import Conversation
from flm.core.finding import Fate, FateKind, Finding
from flm.core.prompt import BoundaryKind, Prompt
from flm.prefix.changes import NEAR, Change, change_of, same_words
from flm.prefix.places import Part, Pieces, Place, Places, Span, char_at, tool_name
from flm.prefix.trie import TOKEN_BYTES
from flm.text.tokenizer import Tokenizer

AROUND_TOKENS = 12  # shown on each side
THEIRS_TOKENS = 128  # of the earlier prompt, made text; more only for JSON
JSON_TOKENS = 768
PROBE_CHARS = 120  # of a text that is looked for in what was seen
PROBE_CHARS_MIN = 8
FRAME_CHARS_MAX = 64  # between two messages
SPECIALS_MORE = 2  # that a thought may be put between
LIKE = 0.5  # of a head: so much makes another one like it

_ADVICE = {
    Change.REORDERED_TOOLS: "send the tools in the same order every time",
    Change.REORDERED_KEYS: "keep the order of JSON keys as it was",
    Change.RERENDERED: "send earlier replies as they were, or use a template that keeps them",
    Change.EDITED: "leave earlier messages as they were sent, and add what is new at the end",
    Change.EVICTED: "raise --prefix-cache-mb, or keep it on disk (--prefix-disk-mb)",
}
_NEVER = {
    FateKind.SMALL_GAIN: "lower --prefix-min-gain",
    FateKind.NO_ROOM: "raise --prefix-cache-mb: leases held all of it",
    FateKind.TOO_LONG: "raise --prefix-cache-mb",
    FateKind.CANCELLED: "let the first request read to its end",
    FateKind.FAILED: "see the log for why the earlier request failed",
    FateKind.BROKEN: "see the log for the entry that was put aside, and check the disk",
    FateKind.NO_BOUNDARY: "mark the place with cache_control, or send it again: it is a fork now",
}
_MOVABLE = {
    Change.TIME: "the time",
    Change.ID: "the id",
    Change.COUNTER: "the number",
    Change.OTHER: "what changes",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """`offset` of `length` tokens can be reused; the prompt parts from an earlier one at token
    `differs_at`, and of what comes before that `read` tokens were read. `fate` is what became of a
    nearer snapshot, where one was lost. `before`, `ours` and `theirs` are text around the
    difference: for the caller's own eyes, never for a log.
    """

    offset: int
    length: int
    tier: str | None
    differs_at: int
    read: int
    place: Place
    change: Change
    fate: Fate | None
    before: str
    ours: str
    theirs: str
    advice: str

    def line(self) -> str:
        """For the log: without a word of the prompt."""
        where = f"{self.place.plain} +{self.place.offset}"
        what = f"{self.change.value} at token {self.differs_at}, {where}"
        if self.change in (Change.EVICTED, Change.NEVER_CAPTURED):
            what = f"{self.differs_at} were read before"
            if self.read < self.differs_at:
                what = f"{self.differs_at} were seen before, {self.read or 'none'} of them read"
        if self.change is Change.NEVER_CAPTURED:
            what += ", never captured"
        lost = f", {self.fate} at {self.fate.offset}" if self.fate else ""
        return f"Prefix cache: {self.offset} of {self.length} tokens reused: {what}{lost}"


def explain(
    conversation: Conversation | None, text: str, finding: Finding, tokenizer: Tokenizer
) -> Explanation | None:
    """Of a prompt that was found as `finding`, and that `text` was encoded to.

    None where there is nothing to explain. Takes a few ms; any thread.
    """
    if len(finding.prompt.tokens) - finding.offset < max(1, finding.gain_min):
        return None
    view = _View(conversation, text, finding, tokenizer)
    reach = max([finding.read, *(fate.offset for fate in finding.fates)])
    lost = reach - finding.offset >= max(1, finding.gain_min)
    differs = view.in_head() or view.in_history()
    if not (lost or differs):
        return None
    fate = _fate(finding) if lost else None
    if differs:
        change = view.change()
    else:
        assert fate
        evicted = fate.kind is FateKind.EVICTED
        change = Change.EVICTED if evicted else Change.NEVER_CAPTURED
    return Explanation(
        offset=finding.offset,
        length=len(finding.prompt.tokens),
        tier=finding.tier,
        differs_at=finding.seen,
        read=finding.read,
        place=view.place,
        change=change,
        fate=fate,
        before=view.before,
        ours=view.ours,
        theirs=view.theirs,
        advice=_advice(change, view.place, fate),
    )


def _fate(finding: Finding) -> Fate:
    """The deepest that is known: from there the most would have been reused."""
    if finding.fates:
        return finding.fates[-1]
    return Fate(FateKind.NO_BOUNDARY, finding.read)


def _advice(change: Change, place: Place, fate: Fate | None) -> str:
    if change is Change.NEVER_CAPTURED and fate:
        return _NEVER[fate.kind]
    if place.part is Part.TEMPLATE and change in _MOVABLE:
        return "the model's chat template writes it: set it with chat_template_kwargs, if it can be"
    if change is Change.WHITESPACE:
        return f"write {place.plain} the same way every time"
    if change in _MOVABLE:
        return f"move {_MOVABLE[change]} from {place.plain} to the last user message"
    return _ADVICE[change]


class _View:
    """A finding with its texts."""

    def __init__(
        self,
        conversation: Conversation | None,
        text: str,
        finding: Finding,
        tokenizer: Tokenizer,
    ) -> None:
        self.prompt: Prompt = finding.prompt
        self.finding = finding
        self._text = text
        self._conversation = conversation
        self._tokenizer = tokenizer
        self._pieces = Pieces(tokenizer)
        tokens, seen = self.prompt.tokens, finding.seen
        around = tokens[max(0, seen - AROUND_TOKENS) : seen]
        self.before = self._pieces.text(around)
        self.ours = self._pieces.text(tokens[seen : seen + AROUND_TOKENS])
        self.theirs = self._their_text(AROUND_TOKENS)
        # The token starts where the texts are still alike; the character does not.
        start = char_at(text, tokens, seen, self._pieces)
        theirs = self._their_text(THEIRS_TOKENS)
        self._start = start
        shown = (each for each in self.prompt.pictures if each.start <= seen < each.end)
        picture = next(shown, None)  # which has no text: what comes behind may well be alike
        alike = 0 if picture else common_length(text[start : start + len(theirs)], theirs)
        self._at = start + alike
        self._rest = theirs[self._at - start :]
        self.places = Places(conversation, text) if conversation else None
        if self.places:
            self.span = self.places.span(self._at)
            self.place = self.span.moved(self._at)
        else:
            self.span = Span(0, len(text), Place(Part.TEXT, "text"))
            self.place = self.span.moved(self._at)
        if picture:
            self.place = Place(Part.PICTURE, picture.place)

    @property
    def _head_end(self) -> int:
        kinds = {boundary.kind: boundary.offset for boundary in self.prompt.boundaries}
        return kinds.get(BoundaryKind.HEAD, 0)

    def in_head(self) -> bool:
        """Rule b. The head's own tokens are looked for, so nothing need be encoded."""
        end, seen = self._head_end, self.finding.seen
        if seen >= end or not self.finding.theirs:
            return False
        if seen >= LIKE * end:
            return True
        starts = (seen + (end - seen) * part // 4 for part in (1, 2, 3))
        return any(
            _position(self.prompt.tokens[start : start + AROUND_TOKENS], self.finding.theirs)
            is not None
            for start in starts
            if end - start >= AROUND_TOKENS
        )

    def in_history(self) -> bool:
        """Rule c. Two who begin otherwise may well say the same first word."""
        if self.finding.seen < self._head_end or not (self.places and self.finding.theirs):
            return False
        spans = self.places.contents
        index = bisect_right(spans, self._at, key=lambda span: span.start)
        if index == len(spans):
            return False
        start, end, *_ = spans[index]
        # With what a template writes before it, so that a quotation elsewhere is not taken for it.
        frame = max(self._at, spans[index - 1].end if index else 0)
        whole = self._at < frame and start - frame <= FRAME_CHARS_MAX
        probe = self._probe(frame if whole else start, end)
        there = _position(probe, self.finding.theirs)
        if there is None or self.place.role != "assistant":
            return there is not None
        # Where another reply was given, the same may come up later: that is another conversation.
        ours = self.prompt.packed[self.finding.seen * TOKEN_BYTES :]
        here = _position(probe, ours)
        return here is None or self._specials(self.finding.theirs[:there]) <= (
            self._specials(ours[:here]) + SPECIALS_MORE
        )

    def change(self) -> Change:
        if self.place.part is Part.PICTURE:
            return Change.EDITED
        place, before = self.place, self._text[max(0, self._at - NEAR) : self._at]
        ours = self._text[self._at : self._at + len(self._rest) + NEAR]
        if place.part is Part.TOOL and self._tools_moved():
            return Change.REORDERED_TOOLS
        if self.span.members and (same := self._same_json()):
            return same
        if change := change_of(before, ours, self._rest):
            return change
        if place.message is None or place.role in ("system", "developer"):
            return Change.OTHER
        if self._thought_moved():
            return Change.RERENDERED
        return Change.EDITED

    def _their_text(self, count: int) -> str:
        packed = self.finding.theirs[: count * TOKEN_BYTES]
        return self._pieces.text(memoryview(packed).cast("i"))

    def _tools_moved(self) -> bool:
        """Whether ours is another of theirs, and theirs is another of ours."""
        assert self.places
        assert self._conversation
        named = next(at for at, _ in self.places.tools if at >= self.span.start)
        there = self._text[named : self._at] + self._rest
        here = self._text[named:]
        names = [name for tool in self._conversation.tools if (name := tool_name(tool))]
        theirs = max((name for name in names if there.startswith(name)), key=len, default="")
        ours = max((name for name in names if here.startswith(name)), key=len, default="")
        return theirs not in ("", ours) and self._text_was_seen(named, self.span.end)

    def _same_json(self) -> Change | None:
        """Of tools and arguments: the same, in another order or written otherwise."""
        theirs = self._their_text(JSON_TOKENS)
        shared = self._text[self.span.start : self._start]
        return same_words(self._text[self.span.start : self.span.end], shared + theirs)

    def _thought_moved(self) -> bool:
        """Whether a reply says the same, but for something before it that came or went."""
        place = self.place
        if place.part is Part.TEMPLATE:
            assert self._conversation
            assert self.places
            first = place.message or 0
            later = [span.place.message for span in self.places.contents if span.start > self._at]
            until = later[0] if later and later[0] is not None else first
            between = self._conversation.messages[first + 1 : until + 1]
            called = bool(self._conversation.messages[first].tool_calls)
            return called or any(message.role == "assistant" for message in between)
        if place.part is Part.REASONING:
            return True
        return (
            place.part is Part.CONTENT
            and place.role == "assistant"
            and not place.offset
            and self._text_was_seen(self._at, self.span.end)
        )

    def _text_was_seen(self, start: int, end: int) -> bool:
        """Whether text[start:end] is in what an earlier prompt went on with."""
        return _position(self._probe(start, end), self.finding.theirs) is not None

    def _probe(self, start: int, end: int) -> tuple[int, ...]:
        """Tokens that say whether text[start:end] is somewhere."""
        if end - start < PROBE_CHARS_MIN:
            end = start + 4 * PROBE_CHARS_MIN
        if end > start + PROBE_CHARS:  # cut between words, for half a one has other tokens
            space = self._text.rfind(" ", start + PROBE_CHARS_MIN, start + PROBE_CHARS)
            end = start + PROBE_CHARS if space < 0 else space
        tokens = self._tokenizer.encode(self._text[start:end])
        # What is beside it may have merged with its ends.
        return tuple(tokens[1:-1] if len(tokens) > 4 else tokens)

    def _specials(self, packed: bytes) -> int:
        special = self._tokenizer.special_ids
        return sum(token in special for token in memoryview(packed).cast("i"))


def _position(tokens: tuple[int, ...], packed: bytes) -> int | None:
    """Of the first byte of `tokens` in `packed`; None for no tokens, or where they are not."""
    wanted = Prompt(tokens).packed
    at = packed.find(wanted) if wanted else -1
    while at >= 0 and at % TOKEN_BYTES:
        at = packed.find(wanted, at + 1)
    return at if at >= 0 else None

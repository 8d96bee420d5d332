"""What one request says: events in, deltas out."""

import json
from collections.abc import Sequence
from dataclasses import replace

from flm.core.chat import (
    Conversation,
    Delta,
    DeltaKind,
    Message,
    ToolCall,
    arguments_of,
    text_of,
    tool_calls_of,
)
from flm.core.event import Admitted, Event, Failed, Finished, FinishReason, Generated, Usage
from flm.core.finding import Finding
from flm.core.request import Request
from flm.text.dialects.dialect import Reader


class Answer:
    """What one request says: feed it the request's events in order.

    Invariants:
      * `reason` and `usage` are set together, by the last event, after which nothing is read.
      * The deltas of all reads tell all that the reply says: thoughts, content and tool calls, up
        to the call that is one too many.
    """

    def __init__(
        self,
        request: Request,
        reader: Reader | None,
        conversation: Conversation | None = None,
        begun: str = "",
        calls_max: int | None = None,
    ) -> None:
        """`conversation`: the messages that were rendered, None for a plain completion; `begun`:
        what the client wrote of the reply.
        """
        self.request = request
        self.conversation = conversation
        self.finding: Finding | None = None  # what was known of the prompt, if much is read
        self.cached_tokens = 0  # as it was admitted
        self.reason: FinishReason | None = None
        self.stop: str | None = None  # the stop string that ended it
        self.usage: Usage | None = None
        self.reasoning_tokens = 0
        self.full = False  # it has all the calls it may have, and goes on: to be cancelled
        self._calls_max = calls_max
        self._reader = reader
        self._begun = begun
        self._said: list[Delta] = []
        self._tokens = 0

    @property
    def spent(self) -> Usage:
        """What it took, or, of one that was left before its end, as far as was heard of it."""
        so_far = Usage(len(self.request.prompt.tokens), self.cached_tokens, self._tokens)
        return self.usage or so_far

    @property
    def finished(self) -> bool:
        return self.reason is not None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Those it has begun."""
        return tool_calls_of(self._said)

    @property
    def calls(self) -> bool:
        """Whether it ended with calls to run: a stop string may have cut the last one."""
        if not self.tool_calls or self.reason is FinishReason.STOP:
            return bool(self.tool_calls)
        whole = arguments_of(self.tool_calls[-1].arguments) is not None
        return self.reason is FinishReason.STOP_STRING and whole

    @property
    def continued(self) -> Conversation | None:
        """The conversation with this reply, as its client sends it back: most keep the thoughts to
        themselves, and some sort the arguments of calls, so it is done if it was with earlier
        replies. None for a plain completion.
        """
        if self.conversation is None:
            return None
        earlier = self.conversation.messages
        thought = any(message.reasoning for message in earlier)
        reasoning = text_of(self._said, DeltaKind.REASONING) if thought else ""
        sort = _sorts(earlier)
        reply = Message(
            "assistant",
            self._begun + text_of(self._said, DeltaKind.CONTENT),
            reasoning=reasoning or None,
            tool_calls=tuple(_sorted(call) if sort else call for call in self.tool_calls),
        )
        return replace(self.conversation, messages=(*earlier, reply))

    def read(self, event: Event) -> list[Delta]:
        """What the event adds to the reply. Raises a Failed event's error."""
        assert not self.finished, f"{self.request.id} goes on after its end"
        deltas = self._within(self._read(event))
        self._said += deltas
        return deltas

    def _within(self, deltas: list[Delta]) -> list[Delta]:
        length = 0 if self.full else len(deltas)
        for place, delta in enumerate(deltas[:length]):
            if delta.kind is DeltaKind.CALL and delta.index == self._calls_max:
                self.full, length = True, place
                break
        if self.full and self.finished:
            self.reason = FinishReason.STOP
        return deltas[:length]

    def _read(self, event: Event) -> list[Delta]:
        match event:
            case Admitted():
                self.finding, self.cached_tokens = event.finding, event.cached_tokens
                return []
            case Generated():
                self.stop = event.stop
                self._tokens += 1
                return self._split(event.text, tokens=1)
            case Finished():
                self.reason, self.usage = event.reason, event.usage
                deltas = self._split(event.text, tokens=0)
                cut = event.reason is not FinishReason.STOP
                return deltas + (self._reader.finish(cut=cut) if self._reader else [])
            case Failed():
                raise event.error

    def _split(self, text: str, *, tokens: int) -> list[Delta]:
        if self._reader is None:
            return [Delta(DeltaKind.CONTENT, text)] if text else []
        thought = self._reader.thinking
        deltas = self._reader.add(text)
        # The tokens that open and close a thought are part of what it costs.
        self.reasoning_tokens += tokens * (thought or self._reader.thinking)
        return deltas


def _sorts(messages: Sequence[Message]) -> bool:
    """Whether all calls in these that have several arguments have them sorted."""
    several = [
        list(arguments)
        for message in messages
        for call in message.tool_calls
        if len(arguments := arguments_of(call.arguments) or {}) > 1
    ]
    return bool(several) and all(keys == sorted(keys) for keys in several)


def _sorted(call: ToolCall) -> ToolCall:
    arguments = json.dumps(arguments_of(call.arguments) or {}, ensure_ascii=False, sort_keys=True)
    return replace(call, arguments=arguments)

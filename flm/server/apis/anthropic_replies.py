"""Anthropic's replies: whole, or in events, as blocks of thought, text and calls."""

import secrets
from typing import Any

from flm.core.chat import Delta, DeltaKind, arguments_of
from flm.core.event import FinishReason
from flm.engine.answer import Answer
from flm.engine.residency import Resident
from flm.errors import FlmError
from flm.server.apis.bodies import AskingBody
from flm.server.apis.usage import message_usage
from flm.server.faults import message_fault
from flm.server.generate import Choice, Generation
from flm.server.wire import encode, event

REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.STOP_STRING: "stop_sequence",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CANCELLED: "end_turn",
}
NOT_YET: dict[str, Any] = dict.fromkeys(
    ("stop_reason", "stop_sequence", "stop_details", "container")
)
# Some clients send back only thoughts that are signed. Nothing here asks who thought them.
SIGNATURE = "Zmxt"
# Of each kind of delta: what its event has of it.
PIECES = {
    DeltaKind.REASONING: b'"thinking_delta","thinking"',
    DeltaKind.CONTENT: b'"text_delta","text"',
    DeltaKind.ARGUMENTS: b'"input_json_delta","partial_json"',
}


class MessageReplies:
    """Writes one request's only reply.

    Invariant: blocks are numbered from 0, and one is closed before the next is opened.
    """

    media_type = "text/event-stream"

    def __init__(self, body: AskingBody, resident: Resident) -> None:
        self.id = f"msg_{secrets.token_hex(12)}"
        of_all = {"id": self.id, "type": "message", "role": "assistant"}
        self._envelope = of_all | {"model": body.model}
        self._open: tuple[str, int] | None = None  # the block's type, and which of these it is
        self._index = 0
        self.ping = _event({"type": "ping"})

    def opening(self, choice: Choice) -> bytes:
        message = self._message([], NOT_YET, choice.answer)
        return _event({"type": "message_start", "message": message})

    def pieces(self, choice: Choice) -> bytes:
        return b"".join([self._piece(delta) for delta in choice.take()])

    def closing(self, choice: Choice, generation: Generation) -> bytes:
        answer = choice.answer
        ended = {"type": "message_delta", "delta": _end(answer), "usage": message_usage(answer)}
        return self._close() + _event(ended)

    def ending(self, generation: Generation) -> bytes:
        return _event({"type": "message_stop"})

    def failed(self, error: FlmError) -> bytes:
        return _event(message_fault(error))

    def whole(self, generation: Generation) -> dict[str, Any]:
        (choice,) = generation.choices
        answer = choice.answer
        return self._message(_blocks(choice.take(), cut=not answer.calls), _end(answer), answer)

    def _message(
        self, blocks: list[dict[str, Any]], end: dict[str, Any], answer: Answer
    ) -> dict[str, Any]:
        return {**self._envelope, "content": blocks, **end, "usage": message_usage(answer)}

    def _piece(self, delta: Delta) -> bytes:
        """The delta's event, with those around it where a block ends and another begins."""
        block = _block(delta)
        here, before = (block["type"], delta.index), b""
        if self._open != here:
            before = self._close() + _event(
                {"type": "content_block_start", "index": self._index, "content_block": block}
            )
            self._open = here
        if delta.kind is DeltaKind.CALL:
            return before
        return before + self._delta(PIECES[delta.kind], delta.text)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signed = self._delta(b'"signature_delta","signature"', SIGNATURE)
        ended = signed if self._open[0] == "thinking" else b""
        ended += _event({"type": "content_block_stop", "index": self._index})
        self._open, self._index = None, self._index + 1
        return ended

    def _delta(self, piece: bytes, text: str) -> bytes:
        return (
            b"event: content_block_delta\n"
            b'data: {"type":"content_block_delta","index":%d,"delta":{"type":%b:%b}}\n\n'
        ) % (self._index, piece, encode(text))


def _event(said: dict[str, Any]) -> bytes:
    return event(said["type"], said)


def _block(delta: Delta) -> dict[str, Any]:
    """Of the delta's kind, with nothing in it yet; a call's has its name."""
    match delta.kind:
        case DeltaKind.REASONING:
            return {"type": "thinking", "thinking": "", "signature": ""}
        case DeltaKind.CONTENT:
            return {"type": "text", "text": "", "citations": None}
        case DeltaKind.CALL | DeltaKind.ARGUMENTS:
            call = {"id": delta.call_id, "name": delta.text, "input": {}}
            return {"type": "tool_use", **call, "caller": {"type": "direct"}}


def _blocks(said: list[Delta], *, cut: bool) -> list[dict[str, Any]]:
    """`cut`: a call without all of its input is left out."""
    blocks: list[dict[str, Any]] = []
    for delta in said:
        if delta.kind is DeltaKind.ARGUMENTS:
            blocks[-1]["input"] = arguments_of(delta.text)
            continue
        blocks.append(_block(delta))
        if delta.kind is DeltaKind.REASONING:
            blocks[-1] |= {"thinking": delta.text, "signature": SIGNATURE}
        elif delta.kind is DeltaKind.CONTENT:
            blocks[-1]["text"] = delta.text
        else:
            blocks[-1]["input"] = None if cut else {}
    return [block for block in blocks if block.get("input", {}) is not None]


def _end(answer: Answer) -> dict[str, Any]:
    assert answer.reason is not None, "a message is closed when it has ended"
    reason = "tool_use" if answer.calls else REASONS[answer.reason]
    stop = answer.stop if reason == "stop_sequence" else None
    return NOT_YET | {"stop_reason": reason, "stop_sequence": stop}

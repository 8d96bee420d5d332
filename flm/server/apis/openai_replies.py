"""OpenAI's replies: whole, or in chunks that cost a head made once, the text as JSON, a tail."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flm.core.chat import DeltaKind, text_of, tool_calls_of
from flm.core.event import FinishReason, Generated
from flm.engine.residency import Resident
from flm.errors import FlmError
from flm.server.apis.logprobs import chat_logprobs, text_logprobs
from flm.server.apis.openai import ReplyBody
from flm.server.apis.usage import timings, usage
from flm.server.faults import fault
from flm.server.generate import Choice, Generation
from flm.server.sse import PING
from flm.server.wire import encode
from flm.text.tokenizer import Tokenizer

REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "stop",
}


def _message(choice: Choice) -> dict[str, Any]:
    said = choice.take()
    calls = tool_calls_of(said)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text_of(said, DeltaKind.CONTENT) or (None if calls else ""),
        "refusal": None,
        "annotations": [],
    }
    if reasoning := text_of(said, DeltaKind.REASONING):
        message |= {"reasoning_content": reasoning, "reasoning": reasoning}
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    return {"message": message}


def _text(choice: Choice) -> dict[str, Any]:
    return {"text": text_of(choice.take(), DeltaKind.CONTENT)}


@dataclass(frozen=True, slots=True)
class Form:
    """How one of the two endpoints words its replies; what a delta has stands there as JSON."""

    id_prefix: str
    whole_object: str
    chunk_object: str
    opening: bytes | None
    pieces: Mapping[DeltaKind, bytes]
    closing: bytes
    said: Callable[[Choice], dict[str, Any]]
    logprobs: Callable[[Sequence[Generated], Tokenizer], dict[str, Any]]


CHAT = Form(
    id_prefix="chatcmpl",
    whole_object="chat.completion",
    chunk_object="chat.completion.chunk",
    opening=b'"delta":{"role":"assistant","content":""}',
    pieces={
        DeltaKind.REASONING: b'"delta":{"reasoning_content":%(text)b,"reasoning":%(text)b}',
        DeltaKind.CONTENT: b'"delta":{"content":%(text)b}',
        DeltaKind.CALL: b'"delta":{"tool_calls":[{"index":%(index)b,"id":%(id)b,'
        b'"type":"function","function":{"name":%(text)b,"arguments":""}}]}',
        DeltaKind.ARGUMENTS: b'"delta":{"tool_calls":[{"index":%(index)b,'
        b'"function":{"arguments":%(text)b}}]}',
    },
    closing=b'"delta":{}',
    said=_message,
    logprobs=chat_logprobs,
)
TEXT = Form(
    id_prefix="cmpl",
    whole_object="text_completion",
    chunk_object="text_completion",
    opening=None,
    pieces={DeltaKind.CONTENT: b'"text":%(text)b'},
    closing=b'"text":""',
    said=_text,
    logprobs=text_logprobs,
)


class ChunkReplies:
    """Writes one request's replies in a form."""

    media_type = "text/event-stream"
    ping = PING

    def __init__(self, form: Form, body: ReplyBody, resident: Resident) -> None:
        self.id = f"{form.id_prefix}-{secrets.token_hex(12)}"
        self._form = form
        self._resident = resident
        self._wants_usage = body.wants_usage
        self._envelope = {
            "id": self.id,
            "object": form.whole_object,
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": f"fp_{resident.bundle.key[:12]}",
        }
        open_object = encode(self._envelope | {"object": form.chunk_object})[:-1]
        self._head = open_object + b',"choices":['

    def opening(self, choice: Choice) -> bytes:
        """The chunk that says who speaks, if the form has one."""
        return self._chunk(choice, self._form.opening) if self._form.opening else b""

    def pieces(self, choice: Choice) -> bytes:
        """A chunk for each delta."""
        chunks = []
        for delta in choice.take():
            said = self._form.pieces[delta.kind] % {
                b"text": encode(delta.text),
                b"index": encode(delta.index),
                b"id": encode(delta.call_id),
            }
            chunks.append(self._chunk(choice, said, logprobs=self._logprobs(choice)))
        return b"".join(chunks)

    def closing(self, choice: Choice, generation: Generation) -> bytes:
        """The chunk with the finish reason; llama.cpp's timings go with the last of them."""
        return self._chunk(
            choice,
            self._form.closing,
            logprobs=self._logprobs(choice),
            reason=encode(_reason(choice)),
            timings=timings(generation.prompts) if generation.finished else None,
        )

    def ending(self, generation: Generation) -> bytes:
        """The chunk without choices, for who asked for it, and the last word."""
        usage = b'],"usage":%b}' % encode(self._usage(generation))
        return (_frame(self._head + usage) if self._wants_usage else b"") + b"data: [DONE]\n\n"

    def failed(self, error: FlmError) -> bytes:
        return _frame(encode(fault(error)))

    def whole(self, generation: Generation) -> dict[str, Any]:
        told = [
            {
                "index": choice.index,
                **self._form.said(choice),
                "logprobs": self._logprobs(choice),
                "finish_reason": _reason(choice),
            }
            for choice in generation.choices
        ]
        cost = {"usage": self._usage(generation), "timings": timings(generation.prompts)}
        return {**self._envelope, "choices": told, **cost}

    def _usage(self, generation: Generation) -> dict[str, Any]:
        return usage(generation.prompts, context_length=self._resident.context_length)

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        tokens = choice.take_tokens()
        return self._form.logprobs(tokens, self._resident.tokenizer) if tokens else None

    def _chunk(
        self,
        choice: Choice,
        said: bytes,
        *,
        logprobs: Mapping[str, Any] | None = None,
        reason: bytes = b"null",
        timings: Mapping[str, Any] | None = None,
    ) -> bytes:
        odds = b"null" if logprobs is None else encode(logprobs)
        tail = b"" if timings is None else b',"timings":' + encode(timings)
        body = b'{"index":%d,%b,"logprobs":%b,"finish_reason":%b}]%b}'
        return _frame(self._head + body % (choice.index, said, odds, reason, tail))


def _frame(chunk: bytes) -> bytes:
    return b"data: %b\n\n" % chunk


def _reason(choice: Choice) -> str:
    answer = choice.answer
    assert answer.reason is not None, "a choice is closed when it has ended"
    return "tool_calls" if answer.calls else REASONS[answer.reason]

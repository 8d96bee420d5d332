"""Ollama's replies: whole, or a JSON object a line."""

import secrets
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from flm.core.chat import Delta, DeltaKind, ToolCall, arguments_of, text_of, tool_calls_of
from flm.engine.answer import Answer
from flm.engine.residency import Resident
from flm.errors import FlmError
from flm.server.apis.ollama import OllamaBody
from flm.server.apis.openai_replies import REASONS
from flm.server.faults import plain_fault
from flm.server.generate import Choice, Generation
from flm.server.wire import encode


class LineReplies:
    """Writes one request's only reply, to a chat or to a plain prompt.

    Clients take a call whole: it is told once all of it is there.
    """

    media_type = "application/x-ndjson"

    def __init__(self, body: OllamaBody, resident: Resident, *, chat: bool) -> None:
        self.id = f"ollama-{secrets.token_hex(12)}"
        self._model = body.model
        self._unloads = body.kept_s == 0
        self._chat = chat
        self._began_ns = time.monotonic_ns()
        self._call: list[Delta] = []  # what there is of it

    @property
    def ping(self) -> bytes:
        """A line that says nothing: there are no comments in this format."""
        return self._line(self._said())

    def opening(self, choice: Choice) -> bytes:
        return b""

    def pieces(self, choice: Choice) -> bytes:
        return b"".join([self._piece(delta) for delta in choice.take()])

    def closing(self, choice: Choice, generation: Generation) -> bytes:
        return self._called() + self._line(self._said(), self._end(choice.answer))

    def ending(self, generation: Generation) -> bytes:
        return b""

    def failed(self, error: FlmError) -> bytes:
        return encode(plain_fault(error)) + b"\n"

    def whole(self, generation: Generation) -> dict[str, Any]:
        (choice,) = generation.choices
        said = choice.take()
        told = self._said(
            text_of(said, DeltaKind.CONTENT),
            thinking=text_of(said, DeltaKind.REASONING),
            calls=tool_calls_of(said),
        )
        return self._object(told, self._end(choice.answer))

    def loaded(self) -> dict[str, Any]:
        """To who asked for nothing but that the model be there, or that it go."""
        reason = "unload" if self._unloads else "load"
        return self._object(self._said(), {"done": True, "done_reason": reason})

    def _piece(self, delta: Delta) -> bytes:
        if delta.kind is DeltaKind.ARGUMENTS:
            self._call.append(delta)
            return b""
        before = self._called()
        match delta.kind:
            case DeltaKind.CALL:
                self._call = [delta]
                return before
            case DeltaKind.REASONING:
                return before + self._line(self._said(thinking=delta.text))
            case DeltaKind.CONTENT:
                return before + self._line(self._said(delta.text))

    def _called(self) -> bytes:
        call, self._call = tool_calls_of(self._call), []
        said = self._said(calls=call)
        return self._line(said) if "tool_calls" in said.get("message", ()) else b""

    def _said(
        self, text: str = "", *, thinking: str = "", calls: Iterable[ToolCall] = ()
    ) -> dict[str, Any]:
        thought = {"thinking": thinking} if thinking else {}
        if not self._chat:
            return {"response": text, **thought}
        known = [told for call in calls if (told := _call(call))]
        called = {"tool_calls": known} if known else {}
        return {"message": {"role": "assistant", "content": text, **thought, **called}}

    def _object(self, said: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return {"model": self._model, "created_at": now, **said, **end}

    def _line(self, said: dict[str, Any], end: dict[str, Any] | None = None) -> bytes:
        return encode(self._object(said, end or {"done": False})) + b"\n"

    def _end(self, answer: Answer) -> dict[str, Any]:
        """What it cost, times in nanoseconds. The model was there: nothing was loaded."""
        assert answer.reason is not None, "a reply is closed when it has ended"
        assert answer.usage is not None
        usage = answer.usage
        return {
            "done": True,
            "done_reason": REASONS[answer.reason],
            "total_duration": time.monotonic_ns() - self._began_ns,
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": round(usage.prefill_s * 1e9),
            "eval_count": usage.completion_tokens,
            "eval_duration": round(usage.decode_s * 1e9),
            "cached_tokens": usage.cached_tokens,
        }


def _call(call: ToolCall) -> dict[str, Any] | None:
    """None for one that was cut: its arguments are an object here, and half of one is none."""
    arguments = arguments_of(call.arguments or "{}")
    if arguments is None:
        return None
    return {"id": call.id, "function": {"name": call.name, "arguments": arguments}}

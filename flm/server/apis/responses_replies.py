"""The replies of OpenAI's Responses: items of thought, text and calls, whole or in events."""

import secrets
import time
from dataclasses import dataclass
from typing import Any

from flm.core.chat import Delta, DeltaKind
from flm.core.event import FinishReason
from flm.engine.answer import Answer
from flm.engine.residency import Resident
from flm.errors import FlmError
from flm.server.apis.bodies import sampling
from flm.server.apis.responses import ResponsesBody
from flm.server.apis.usage import response_usage
from flm.server.faults import fault
from flm.server.generate import Choice, Generation
from flm.server.sse import PING
from flm.server.wire import event

# Why a response is incomplete; the other reasons make it a completed one.
INCOMPLETE = {FinishReason.LENGTH: "max_output_tokens", FinishReason.CANCELLED: "cancelled"}

SCHEMA = {"description": None, "strict": False}  # what is told of a format with one at least


@dataclass(frozen=True, slots=True)
class Form:
    """How a kind of item is told: its text in a part of its own, or as the item's arguments."""

    id_prefix: str
    item: dict[str, Any]
    says: str  # what its text is called in events
    field: str = "text"
    part: dict[str, Any] | None = None
    part_event: str = "content_part"
    part_index: str = "content_index"
    parts: str = "content"


MESSAGE = Form(
    "msg",
    {"type": "message", "role": "assistant", "content": []},
    "output_text",
    part={"type": "output_text", "annotations": [], "logprobs": []},
)
THOUGHT = Form(
    "rs",
    {"type": "reasoning", "summary": [], "content": []},
    "reasoning_text",
    part={"type": "reasoning_text"},
)
SUMMARY = Form(
    "rs",
    {"type": "reasoning", "summary": []},
    "reasoning_summary_text",
    part={"type": "summary_text"},
    part_event="reasoning_summary_part",
    part_index="summary_index",
    parts="summary",
)
CALL = Form("fc", {"type": "function_call"}, "function_call_arguments", field="arguments")


@dataclass(slots=True)
class Item:
    """One of a response's, as far as it was said."""

    form: Form
    of: int  # of which of the reply's calls or thoughts
    id: str
    names: dict[str, str]  # a call's
    text: str = ""
    status: str = "in_progress"

    @property
    def part(self) -> dict[str, Any]:
        return (self.form.part or {}) | {"text": self.text}

    def told(self) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self.id, **self.form.item, **self.names}
        item["status"] = self.status
        if self.form.part is None:
            item[self.form.field] = self.text
        elif self.status != "in_progress":
            item[self.form.parts] = [self.part]
        return item


class ResponseReplies:
    """Writes one request's only reply.

    Invariants: events are numbered from 0; of the items only the last may be in progress.
    """

    media_type = "text/event-stream"
    ping = PING

    def __init__(self, body: ResponsesBody, resident: Resident) -> None:
        self.id = f"resp_{secrets.token_hex(24)}"
        self._asked = _asked(body, resident)
        # What clients show of a thought is a summary, if they ask for one: here that is all of it.
        asks_summary = body.reasoning and body.reasoning.summary
        self._forms = {
            DeltaKind.CONTENT: MESSAGE,
            DeltaKind.REASONING: SUMMARY if asks_summary else THOUGHT,
            DeltaKind.CALL: CALL,
            DeltaKind.ARGUMENTS: CALL,
        }
        self._created = int(time.time())
        self._items: list[Item] = []
        self._number = 0

    def opening(self, choice: Choice) -> bytes:
        return self._begin()

    def pieces(self, choice: Choice) -> bytes:
        return b"".join([self._piece(delta) for delta in choice.take()])

    def closing(self, choice: Choice, generation: Generation) -> bytes:
        why = _incomplete(choice.answer)
        frames = self._close("incomplete" if why else "completed")
        response = self._ended(choice.answer)
        return frames + self._event(f"response.{response['status']}", response=response)

    def ending(self, generation: Generation) -> bytes:
        return b"data: [DONE]\n\n"

    def failed(self, error: FlmError) -> bytes:
        """Twice: some clients raise what an event of its own says, others read how it ended."""
        said = fault(error)["error"]
        told = {name: said[name] for name in ("type", "code", "message", "param")}
        how = {"code": said["code"] or said["type"], "message": said["message"]}
        frames = b"" if self._number else self._begin()
        frames += self._close("incomplete") + self._event("error", error=told)
        return frames + self._event("response.failed", response=self._response("failed", error=how))

    def whole(self, generation: Generation) -> dict[str, Any]:
        (choice,) = generation.choices
        self.pieces(choice)
        self._close("incomplete" if _incomplete(choice.answer) else "completed")
        return self._ended(choice.answer)

    def _begin(self) -> bytes:
        response = self._response("in_progress")
        return b"".join(
            self._event(f"response.{name}", response=response)
            for name in ("created", "in_progress")
        )

    def _piece(self, delta: Delta) -> bytes:
        """The delta's event, with those around it where an item ends and another begins."""
        form, before = self._forms[delta.kind], b""
        last = self._items[-1] if self._items else None
        if last is None or last.form is not form or last.of != delta.index:
            before = self._close("completed") + self._open(form, delta)
        if delta.kind is DeltaKind.CALL:
            return before
        self._items[-1].text += delta.text
        return before + self._of_item(f"{form.says}.delta", delta=delta.text)

    def _open(self, form: Form, delta: Delta) -> bytes:
        called = {"call_id": delta.call_id, "name": delta.text} if form is CALL else {}
        item = Item(form, delta.index, f"{form.id_prefix}_{secrets.token_hex(24)}", called)
        self._items.append(item)
        return self._whole_item("added") + self._part("added")

    def _close(self, status: str) -> bytes:
        item = self._items[-1] if self._items else None
        if item is None or item.status != "in_progress":
            return b""
        said = self._of_item(f"{item.form.says}.done", **{item.form.field: item.text})
        said += self._part("done")
        item.status = status
        return said + self._whole_item("done")

    def _whole_item(self, what: str) -> bytes:
        index, item = len(self._items) - 1, self._items[-1].told()
        return self._event(f"response.output_item.{what}", output_index=index, item=item)

    def _part(self, what: str) -> bytes:
        item = self._items[-1]
        if item.form.part is None:
            return b""
        return self._of_item(f"{item.form.part_event}.{what}", part=item.part)

    def _of_item(self, kind: str, **said: Any) -> bytes:
        """An event within the last item."""
        item = self._items[-1]
        place = {"item_id": item.id, "output_index": len(self._items) - 1}
        if item.form.part is not None:
            place[item.form.part_index] = 0
        return self._event(f"response.{kind}", **place, **said)

    def _event(self, kind: str, **said: Any) -> bytes:
        said = {"type": kind, "sequence_number": self._number, **said}
        self._number += 1
        return event(kind, said)

    def _ended(self, answer: Answer) -> dict[str, Any]:
        why = _incomplete(answer)
        usage = response_usage(answer)
        if why:
            return self._response("incomplete", incomplete_details={"reason": why}, usage=usage)
        return self._response("completed", completed_at=int(time.time()), usage=usage)

    def _response(self, status: str, **ending: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "completed_at": None,
            "incomplete_details": None,
            "error": None,
            "usage": None,
            "output": [item.told() for item in self._items],
            **self._asked,
            **ending,
        }


def _incomplete(answer: Answer) -> str | None:
    assert answer.reason is not None, "a response is closed when it has ended"
    return INCOMPLETE.get(answer.reason)


def _asked(body: ResponsesBody, resident: Resident) -> dict[str, Any]:
    """What the response repeats of its request; nothing is stored or cut to fit."""
    chosen = sampling(body, resident.card.sampling)
    nothing = dict.fromkeys(("description", "parameters", "strict"))
    tools = [tool for tool in body.tools or () if tool.get("type") == "function"]
    reasoning = body.reasoning
    return {
        "model": body.model,
        "instructions": body.instructions,
        "previous_response_id": None,
        "tools": [nothing | tool for tool in tools],
        "tool_choice": body.tool_choice or "auto",
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "text": {"format": {**(SCHEMA if "schema" in body.format else {}), **body.format}},
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "temperature": chosen.temperature,
        "top_p": chosen.top_p,
        "presence_penalty": chosen.presence_penalty,
        "frequency_penalty": chosen.frequency_penalty,
        "top_logprobs": 0,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "truncation": "disabled",
        "store": False,
        "background": False,
        "service_tier": "default",
        "metadata": body.metadata or {},
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
    }

"""A conversation as every API means it, and the pieces of the reply."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from flm.core.picture import Picture

NAME_CHARS_MAX = 256  # of a function


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is JSON text, as the model or the client wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """`role` is system, user, assistant or tool; `content` is flattened text, None if absent.

    `marks` are offsets in `content`, in characters, where the client wants a snapshot. `languages`
    are codes: which one a text to translate is in, and which one is wanted. `pictures` stand at
    offsets in `content`, in characters, in order.
    """

    role: str
    content: str | None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    marks: tuple[int, ...] = ()
    languages: tuple[str, str] | None = None
    pictures: tuple[tuple[int, Picture], ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the chat template is rendered with. `tools` are OpenAI function objects, in order."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    thinking: bool | None = None  # None: the template's own default
    reasoning_effort: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


class DeltaKind(Enum):
    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"  # a tool call begins; the text is its function's name, all of it
    ARGUMENTS = "arguments"  # more of the call's arguments, as JSON


@dataclass(frozen=True, slots=True)
class Delta:
    """`index`: of which of the reply's calls or thoughts it is; `call_id` comes with a CALL."""

    kind: DeltaKind
    text: str
    index: int = 0
    call_id: str = ""


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """Neighbours of a kind in one; no two calls are."""
    found: list[Delta] = []
    for delta in deltas:
        last = found[-1] if found else None
        if last and last.kind is delta.kind and last.index == delta.index:
            found[-1] = replace(last, text=last.text + delta.text)
        else:
            found.append(delta)
    return found


def text_of(deltas: Iterable[Delta], kind: DeltaKind) -> str:
    return "".join(delta.text for delta in deltas if delta.kind is kind)


def tool_calls_of(deltas: Sequence[Delta]) -> tuple[ToolCall, ...]:
    """In order, as far as they came."""
    begun = {delta.index: delta for delta in deltas if delta.kind is DeltaKind.CALL}
    return tuple(
        ToolCall(
            call.call_id,
            call.text,
            text_of((delta for delta in deltas if delta.index == index), DeltaKind.ARGUMENTS),
        )
        for index, call in begun.items()
    )


def arguments_of(text: str) -> dict[str, Any] | None:
    """A call's, from their JSON; None where that is no whole object, as in a call that was cut."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def is_function_name(name: str) -> bool:
    """Whether a function may be called so: models sometimes write prose where a name is due."""
    return 0 < len(name) <= NAME_CHARS_MAX and not any(each.isspace() for each in name)

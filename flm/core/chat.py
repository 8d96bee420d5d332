"""A conversation as every dialect means it, and the pieces of the reply."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is JSON text, as the model or the client wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """`role` is system, user, assistant or tool; `content` is flattened text, None if absent.

    `marks` are offsets in `content`, in characters, where the client wants a snapshot.
    """

    role: str
    content: str | None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    marks: tuple[int, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Delta:
    kind: DeltaKind
    text: str

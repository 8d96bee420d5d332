"""Anthropic's request bodies, and what they mean in our own nouns."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from flm.core.chat import Conversation, Message, ToolCall
from flm.core.picture import Sight
from flm.core.request import SamplingParams
from flm.engine.album import KEEPS_NOTHING, Album
from flm.engine.reader import Reader
from flm.engine.terms import Terms
from flm.errors import BadRequest
from flm.server.apis.bodies import (
    AskingBody,
    Body,
    Many,
    SamplingBody,
    effort_known,
    refuse_fields,
    sampling,
    stop_strings,
    warn_skipped,
    whole,
)
from flm.server.apis.choices import response_format, tool_choice
from flm.server.apis.content import flat_text, is_marked, joined_text
from flm.server.apis.policies import arranged
from flm.settings import Settings

# What they would do to the reply, we cannot do yet; None and these values do nothing.
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {"mcp_servers": ([],)}
ERROR = "Error: "  # before a result that is one and does not begin by saying so,
BEGINNING_CHARS = 24  # in so many of its characters

Block = dict[str, Any]


class MessageParam(Body):
    role: Literal["user", "assistant", "system"]
    content: str | Many[Block]


class Thinking(Body):
    """A model ends its thoughts by itself: `budget_tokens` has no effect."""

    type: str


class OutputConfig(Body):
    effort: str | None = None
    format: dict[str, Any] | None = None


class CountBody(AskingBody, SamplingBody):
    """A conversation, to be counted."""

    messages: Many[MessageParam] = Field(min_length=1)
    system: str | Many[Block] | None = None
    tools: Many[Block] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None  # as it was called before


class MessagesBody(CountBody):
    """The same, to be answered."""

    max_tokens: Annotated[int, BeforeValidator(whole), Field(ge=1)]
    stop_sequences: Many[str] | None = None


def refuse_unsupported(body: CountBody) -> None:
    """Raises UnsupportedFeature for a field that asks for more than we can do."""
    refuse_fields(body, UNSUPPORTED)


def conversation(
    body: CountBody,
    *,
    model: str,
    settings: Settings,
    sight: Sight | None = None,
    album: Album = KEEPS_NOTHING,
) -> Conversation:
    reader = Reader(model, settings, sight, body.image_max_tokens, album.visit())
    messages, places = [], []
    if body.system:
        text, marks, pictures = flat_text(body.system, place="system", reader=reader)
        messages.append(Message("system", text, marks=marks, pictures=pictures))
        places.append("system")
    for index, given in enumerate(body.messages):
        place = f"messages[{index}]"
        said = list(_messages(given, place=f"{place}.content", reader=reader))
        messages += said
        places += [place] * len(said)
    effort = body.output_config.effort if body.output_config else None
    known = effort_known(effort, param="output_config.effort") if effort else None
    return Conversation(
        arranged(
            messages,
            system=settings.system_message_policy,
            developer=settings.developer_message_policy,
            places=places,
        ),
        tools=_tools(body.tools or []),
        # Whoever says nothing of thoughts expects none.
        thinking=body.thinking is not None and body.thinking.type != "disabled",
        reasoning_effort=None if known == "none" else known,
    )


def terms(body: MessagesBody, defaults: SamplingParams) -> Terms:
    """How the reply is to be chosen and ended: the card's defaults where the body is silent."""
    asked, config = body.tool_choice or {}, body.output_config
    choice = tool_choice(asked, parallel=not asked.get("disable_parallel_tool_use"))
    format = response_format(config.format if config else None, field="output_config.format")
    return Terms(
        sampling=sampling(body, defaults),
        max_tokens=body.max_tokens,
        stop=stop_strings(body.stop_sequences, param="stop_sequences"),
        priority=body.priority,
        format=format or response_format(body.output_format, field="output_format"),
        **asdict(choice),
    )


def _messages(body: MessageParam, *, place: str, reader: Reader) -> Iterator[Message]:
    """A user's message may hold results of tools: each is a message of its own.

    A system message among these is what OpenAI's developers send: the same policy places it.
    """
    role = "developer" if body.role == "system" else body.role
    if isinstance(body.content, str) or not body.content:
        yield Message(role, str(body.content or ""))
    elif body.role == "assistant":
        yield _reply(body.content, place=place, reader=reader)
    else:
        parts = enumerate(body.content)
        for is_result, run in groupby(parts, lambda part: part[1].get("type") == "tool_result"):
            if is_result:
                for index, block in run:
                    yield _result(block, place=f"{place}[{index}]", reader=reader)
            else:
                text, marks, pictures = joined_text(run, place=place, reader=reader)
                yield Message(role, text, marks=marks, pictures=pictures)


def _reply(blocks: list[Block], *, place: str, reader: Reader) -> Message:
    """What it said in several blocks it said in one go."""
    calls, thoughts, parts = [], [], []
    for index, block in enumerate(blocks):
        if block.get("type") == "tool_use":
            calls.append((block, _tool_call(block, f"{place}[{index}]")))
        elif block.get("type") == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        else:
            parts.append((index, block))
    text, marks, pictures = joined_text(parts, place=place, reader=reader, between="")
    if any(is_marked(block) for block, _ in calls):  # as near to it as a mark can be
        marks = tuple(dict.fromkeys((*marks, len(text))))
    return Message(
        "assistant",
        text,
        reasoning="".join(thoughts) or None,
        tool_calls=tuple(call for _, call in calls),
        marks=marks,
        pictures=pictures,
    )


def _tool_call(block: Block, place: str) -> ToolCall:
    call_id, name, given = block.get("id"), block.get("name"), block.get("input")
    if not (isinstance(call_id, str) and isinstance(name, str) and isinstance(given, dict)):
        raise BadRequest(
            f"{place} is not a whole tool_use block",
            fix='they look like {"type": "tool_use", "id": "...", "name": "...", "input": {}}',
            param=place,
        )
    return ToolCall(call_id, name, json.dumps(given, ensure_ascii=False))


def _result(block: Block, *, place: str, reader: Reader) -> Message:
    call_id, content = block.get("tool_use_id"), block.get("content")
    parts = content if isinstance(content, list) else []
    known = isinstance(content, str | list | None) and all(isinstance(part, dict) for part in parts)
    if not (isinstance(call_id, str) and known):
        raise BadRequest(
            f"{place} is not a whole tool_result block",
            fix='they look like {"type": "tool_result", "tool_use_id": "...", "content": "..."}',
            param=place,
        )
    said, marks, pictures = flat_text(content, place=f"{place}.content", reader=reader)
    text = said or ""
    if is_marked(block):
        marks = tuple(dict.fromkeys((*marks, len(text))))
    if block.get("is_error") and "error" not in text[:BEGINNING_CHARS].lower():
        text, marks = ERROR + text, tuple(len(ERROR) + mark for mark in marks)
        pictures = tuple((len(ERROR) + at, picture) for at, picture in pictures)
    return Message("tool", text, tool_call_id=call_id, marks=marks, pictures=pictures)


def _tools(given: list[Block]) -> tuple[Mapping[str, Any], ...]:
    """As OpenAI has them, which is how templates write them; those that a client does not run
    itself are skipped.
    """
    tools, skipped = [], []
    for index, tool in enumerate(given):
        name, kind = tool.get("name"), tool.get("type") or "custom"
        if kind != "custom":
            skipped.append(str(kind))
        elif not isinstance(name, str):
            place = f"tools[{index}]"
            raise BadRequest(f"{place}.name is missing", fix="name every tool", param=place)
        else:
            function = {"name": name, "description": tool.get("description")}
            function["parameters"] = tool.get("input_schema")
            said = {key: value for key, value in function.items() if value is not None}
            tools.append({"type": "function", "function": said})
    warn_skipped(skipped, len(given))
    return tuple(tools)

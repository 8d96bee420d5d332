"""The bodies of OpenAI's Responses, and what they mean in our own nouns.

Nothing is stored: each request brings its whole conversation, as items.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Annotated, Any

from pydantic import Field

from flm.core.chat import Conversation, Message, ToolCall
from flm.core.picture import Sight
from flm.core.request import SamplingParams
from flm.engine.album import KEEPS_NOTHING, Album
from flm.engine.reader import Reader
from flm.engine.terms import Terms
from flm.errors import BadRequest, UnsupportedFeature
from flm.server.apis.bodies import (
    AskingBody,
    Body,
    Many,
    SamplingBody,
    not_supported,
    refuse_fields,
    sampling,
    warn_skipped,
)
from flm.server.apis.choices import response_format, tool_choice
from flm.server.apis.content import flat_text
from flm.server.apis.openai import Limit
from flm.server.apis.policies import arranged, joined
from flm.server.apis.thinking import ThinkingBody, thinking
from flm.settings import Settings

# What they would do to the reply, we cannot do yet; None and these values do nothing.
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "background": (False,),
    "conversation": (),
    "previous_response_id": (),
    "prompt": (),
    "top_logprobs": (0,),
}
LOGPROBS = "message.output_text.logprobs"
STORED = ("previous_response_id", "conversation")  # what was said before, kept by the server
ROLES = ("user", "system", "developer")

Item = dict[str, Any]
Placed = tuple[str, Item]


class TextConfig(Body):
    format: dict[str, Any] | None = None


class ResponsesBody(AskingBody, SamplingBody, ThinkingBody):
    input: str | Annotated[Many[Item], Field(min_length=1)]
    instructions: str | None = None
    tools: Many[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    max_output_tokens: Limit = Field(None, ge=1)
    include: Many[str] | None = None
    store: bool | None = None  # nothing is, whatever it says
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    @property
    def format(self) -> Mapping[str, Any]:
        return (self.text and self.text.format) or {"type": "text"}


def refuse_unsupported(body: ResponsesBody) -> None:
    """Raises UnsupportedFeature for a field that asks for more than we can do."""
    extra = body.model_extra or {}
    for name in STORED:
        if extra.get(name) is not None:
            raise _nothing_stored(f"{name} is given", name)
    refuse_fields(body, UNSUPPORTED)
    if LOGPROBS in (body.include or ()):
        raise not_supported("include", f"include of {LOGPROBS} is not supported")


def conversation(
    body: ResponsesBody,
    *,
    model: str,
    settings: Settings,
    sight: Sight | None = None,
    album: Album = KEEPS_NOTHING,
) -> Conversation:
    placed = [("instructions", Message("system", body.instructions))] if body.instructions else []
    if isinstance(body.input, str):
        placed.append(("input", Message("user", body.input)))
    else:
        placed += _messages(
            body.input, Reader(model, settings, sight, body.image_max_tokens, album.visit())
        )
    effort, think, kwargs = thinking(body)
    return Conversation(
        arranged(
            [message for _, message in placed],
            system=settings.system_message_policy,
            developer=settings.developer_message_policy,
            places=[place for place, _ in placed],
        ),
        tools=_tools(body.tools or []),
        thinking=think,
        reasoning_effort=effort,
        template_kwargs=kwargs,
    )


def terms(body: ResponsesBody, defaults: SamplingParams) -> Terms:
    """How the reply is to be chosen and ended: the card's defaults where the body is silent."""
    choice = tool_choice(body.tool_choice, parallel=body.parallel_tool_calls is not False)
    return Terms(
        sampling=sampling(body, defaults),
        max_tokens=body.max_output_tokens,
        priority=body.priority,
        format=response_format(body.format, field="text.format"),
        **asdict(choice),
    )


def _messages(items: Sequence[Item], reader: Reader) -> Iterator[tuple[str, Message]]:
    placed = [(f"input[{index}]", item) for index, item in enumerate(items)]
    for is_reply, run in groupby(placed, lambda each: _is_of_reply(each[1])):
        if is_reply:
            said = list(run)
            yield said[0][0], _reply(said, reader)
        else:
            yield from ((place, _message(place, item, reader)) for place, item in run)


def _kind(item: Item) -> Any:
    """What is plainly a message need not say so."""
    return item.get("type") or ("message" if "role" in item else None)


def _is_of_reply(item: Item) -> bool:
    kind = _kind(item)
    return kind in ("reasoning", "function_call") or (
        kind == "message" and item.get("role") == "assistant"
    )


def _reply(said: Sequence[Placed], reader: Reader) -> Message:
    """What a model said in several items it said in one go."""
    texts, thoughts, calls = [], [], []
    for place, item in said:
        if item.get("type") == "reasoning":
            thoughts.append(_thought(item))
        elif item.get("type") == "function_call":
            calls.append(_tool_call(place, item))
        else:
            texts.append(_text("assistant", f"{place}.content", item.get("content"), reader))
    (message,) = joined(texts) or [Message("assistant", None)]
    return replace(message, reasoning="".join(thoughts) or None, tool_calls=tuple(calls))


def _message(place: str, item: Item, reader: Reader) -> Message:
    kind, role, call_id = _kind(item), item.get("role"), item.get("call_id")
    if kind == "message" and role in ROLES:
        return _text(role, f"{place}.content", item.get("content"), reader)
    if kind == "function_call_output" and isinstance(call_id, str):
        result = _text("tool", f"{place}.output", item.get("output"), reader)
        return replace(result, tool_call_id=call_id)
    if kind == "item_reference":
        raise _nothing_stored(f"{place} is a reference", place)
    raise BadRequest(
        f"{place} is not an item that is read here, or not whole",
        fix="send messages, function calls with name and call_id, their outputs, and reasoning",
        param=place,
    )


def _text(role: str, place: str, content: Any, reader: Reader) -> Message:
    parts = content if isinstance(content, list) else []
    known = isinstance(content, str | list | None)
    if not (known and all(isinstance(part, str | dict) for part in parts)):
        raise BadRequest(
            f"{place} is neither text nor parts", fix="send a text, or a list of parts", param=place
        )
    text, marks, pictures = flat_text(content, place=place, reader=reader)
    return Message(role, text or "", marks=marks, pictures=pictures)


def _thought(item: Item) -> str:
    """All of it if it is there, else what was told of it."""
    for name in ("content", "summary"):
        parts = item.get(name)
        texts = [part.get("text") for part in parts or () if isinstance(part, dict)]
        if found := "".join(text for text in texts if isinstance(text, str)):
            return found
    return ""


def _tool_call(place: str, item: Item) -> ToolCall:
    call_id, name, arguments = item.get("call_id"), item.get("name"), item.get("arguments")
    if not (isinstance(call_id, str) and isinstance(name, str) and isinstance(arguments, str)):
        raise BadRequest(
            f"{place} is not a whole function_call",
            fix='they look like {"type": "function_call", "call_id": "...", "name": "...", '
            '"arguments": "{}"}',
            param=place,
        )
    return ToolCall(call_id, name, arguments or "{}")


def _tools(given: list[dict[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """As chats have them, which is how templates write them; others are skipped."""
    tools, skipped = [], []
    for index, tool in enumerate(given):
        if tool.get("type") != "function":
            skipped.append(str(tool.get("type")))
        elif not isinstance(tool.get("name"), str):
            place = f"tools[{index}]"
            raise BadRequest(f"{place}.name is missing", fix="name every function", param=place)
        else:
            names = ("name", "description", "parameters")
            function = {name: tool[name] for name in names if tool.get(name) is not None}
            tools.append({"type": "function", "function": function})
    warn_skipped(skipped, len(given))
    return tuple(tools)


def _nothing_stored(what: str, param: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"{what}, but nothing is stored here",
        fix="send the whole conversation in input: messages, calls, their outputs",
        param=param,
    )

"""Ollama's request bodies, and what they mean in our own nouns."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from flm.core.chat import Conversation, Message, ToolCall
from flm.core.picture import Sight
from flm.core.request import SamplingParams
from flm.engine.album import KEEPS_NOTHING, Album
from flm.engine.reader import Reader
from flm.engine.terms import Terms
from flm.server.apis.bodies import (
    AskingBody,
    Body,
    Many,
    SamplingBody,
    Whole,
    effort_known,
    not_supported,
    refuse_fields,
    sampling,
    stop_strings,
)
from flm.server.apis.choices import ANY_OBJECT
from flm.server.apis.content import Pictures
from flm.server.apis.openai import tools_known
from flm.server.apis.policies import arranged
from flm.settings import Settings
from flm.text.constraint import Format

# What they would do to the reply, we cannot do yet; None and these values do nothing.
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "context": ([],),
    "logprobs": (False,),
    "suffix": ("",),
    "template": ("",),
    "top_logprobs": (0,),
}
UNSUPPORTED_OPTIONS: Mapping[str, tuple[object, ...]] = {
    "mirostat": (0,),
    "tfs_z": (1,),
    "typical_p": (1,),
}


def _streaming(value: object) -> object:
    """Ollama streams unless told not to."""
    return True if value is None else value


class Options(SamplingBody):
    """`num_ctx`: the window was settled when the model was loaded."""

    num_predict: Whole = Field(None, ge=-(2**31), lt=2**31)
    num_ctx: Whole = Field(None, ge=0, lt=2**31)
    stop: str | Many[str] | None = None
    repetition_penalty: float | None = Field(None, alias="repeat_penalty", ge=0.01, le=10)
    repeat_last_n: Whole = Field(None, ge=-1, lt=2**31)


class OllamaBody(AskingBody):
    """What chats and plain prompts share."""

    stream: Annotated[bool | None, BeforeValidator(_streaming)] = True
    think: bool | str | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: Options | None = None

    @property
    def chosen(self) -> Options:
        return self.options or Options.model_validate({})

    @property
    def window_wanted(self) -> int:
        return self.chosen.num_ctx or 0


class OllamaFunction(Body):
    name: str
    arguments: dict[str, Any] | None = None


class OllamaCall(Body):
    id: str | None = None
    function: OllamaFunction


class OllamaMessage(Body):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Many[str] | None = None
    tool_calls: Many[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatBody(OllamaBody):
    """No messages: the model is only to be there."""

    messages: Many[OllamaMessage] | None = None
    tools: Many[dict[str, Any]] | None = None

    @property
    def asks(self) -> bool:
        return bool(self.messages)


class OllamaGenerateBody(OllamaBody):
    """No prompt: the same. `raw`: the prompt is all there is, without a template."""

    prompt: str | None = None
    system: str | None = None
    images: Many[str] | None = None
    raw: bool | None = None

    @property
    def asks(self) -> bool:
        return bool(self.prompt)


def refuse_unsupported(body: OllamaBody) -> None:
    """Raises UnsupportedFeature for a field that asks for more than we can do."""
    refuse_fields(body, UNSUPPORTED)
    refuse_fields(body.chosen, UNSUPPORTED_OPTIONS, within="options.")
    if isinstance(body, OllamaGenerateBody) and body.raw and body.system:
        raise not_supported("system", "system has no place in a raw prompt")


def prompt(
    body: OllamaGenerateBody,
    *,
    model: str,
    settings: Settings,
    sight: Sight | None = None,
    album: Album = KEEPS_NOTHING,
) -> Conversation | str:
    """A chat of one message, unless it is raw."""
    if body.raw and body.prompt:
        return body.prompt
    return conversation(body, model=model, settings=settings, sight=sight, album=album)


def conversation(
    body: OllamaChatBody | OllamaGenerateBody,
    *,
    model: str,
    settings: Settings,
    sight: Sight | None = None,
    album: Album = KEEPS_NOTHING,
) -> Conversation:
    effort = effort_known(body.think, param="think") if isinstance(body.think, str) else None
    thinking = effort != "none" if effort else body.think
    return Conversation(
        arranged(
            _messages(body, Reader(model, settings, sight, body.image_max_tokens, album.visit())),
            system=settings.system_message_policy,
            developer=settings.developer_message_policy,
        ),
        tools=tools_known(body.tools or []) if isinstance(body, OllamaChatBody) else (),
        thinking=thinking if isinstance(thinking, bool) else None,
        reasoning_effort=None if effort == "none" else effort,
    )


def terms(body: OllamaBody, defaults: SamplingParams) -> Terms:
    """How the reply is to be chosen and ended: the card's defaults where the body is silent."""
    options = body.chosen
    limit = options.num_predict or 0
    return Terms(
        sampling=_within(sampling(options, defaults), options.repeat_last_n),
        max_tokens=limit if limit > 0 else None,
        stop=stop_strings(options.stop, param="options.stop"),
        priority=body.priority,
        format=_format(body.format),
    )


def _format(given: str | dict[str, Any] | None) -> Format | None:
    """A schema, or "json" for any object."""
    if not given:
        return None
    return Format(ANY_OBJECT if isinstance(given, str) else given, "format")


def _within(chosen: SamplingParams, window: int | None) -> SamplingParams:
    """With penalties that look back so far: -1 is all the way, 0 not at all."""
    if window is None:
        return chosen
    if window == 0:
        none = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        return dataclasses.replace(chosen, **none)  # type: ignore[arg-type]
    return dataclasses.replace(chosen, penalty_window=window if window > 0 else None)


def _messages(body: OllamaChatBody | OllamaGenerateBody, reader: Reader) -> list[Message]:
    if isinstance(body, OllamaChatBody):
        given = enumerate(body.messages or [])
        return [_message(message, f"messages[{index}]", reader) for index, message in given]
    system = [Message("system", body.system)] if body.system else []
    pictures = _pictures(body.images, "", reader)
    return [*system, Message("user", body.prompt, pictures=pictures)]


def _message(body: OllamaMessage, place: str, reader: Reader) -> Message:
    return Message(
        role=body.role,
        content=body.content,
        reasoning=body.thinking or None,
        tool_calls=tuple(map(_tool_call, body.tool_calls or ())),
        tool_call_id=body.tool_call_id,
        name=body.tool_name,
        pictures=_pictures(body.images, f"{place}.", reader),
    )


def _pictures(images: list[str] | None, place: str, reader: Reader) -> Pictures:
    """Those that stand beside a text, in base64 or as data URLs: before all of it."""
    found = []
    for index, image in enumerate(images or ()):
        at = f"{place}images[{index}]"
        read = reader.at if image.startswith("data:") else reader.of
        found.append((0, read(image, at)))
    return tuple(found)


def _tool_call(body: OllamaCall) -> ToolCall:
    arguments = json.dumps(body.function.arguments or {}, ensure_ascii=False)
    return ToolCall(body.id or "", body.function.name, arguments)

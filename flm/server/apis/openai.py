"""OpenAI's request bodies, and what they mean in our own nouns."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from flm.core.chat import Conversation, Message, ToolCall
from flm.core.picture import Sight
from flm.core.request import SamplingParams
from flm.engine.album import KEEPS_NOTHING, Album
from flm.engine.reader import Reader
from flm.engine.terms import Terms
from flm.errors import BadRequest
from flm.numerals import whole_number
from flm.server.apis.bodies import (
    AskingBody,
    Body,
    Many,
    SamplingBody,
    Whole,
    refuse_fields,
    sampling,
    stop_strings,
    warn_skipped,
    whole,
)
from flm.server.apis.choices import ToolChoice, response_format, tool_choice
from flm.server.apis.content import flat_text, languages, unmarked
from flm.server.apis.policies import arranged
from flm.server.apis.thinking import ThinkingBody, thinking
from flm.settings import Settings

CHOICES_MAX = 16  # replies asked for in one request: n times the prompts
LOGPROBS_MAX = 20
BIASES_MAX = 2**18  # no vocabulary has more tokens

# What they would do to the reply, we cannot do yet; None and these values do nothing.
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "grammar": ("",),
    "guided_choice": ([],),
    "guided_grammar": ("",),
    "guided_json": (),
    "guided_regex": ("",),
    "json_schema": (),
    "structured_outputs": (),
    "suffix": ("",),
}


def _unlimited(value: object) -> object:
    """-1, which llama.cpp and LM Studio read as no limit."""
    return None if whole(value) == -1 else whole(value)


def _countable(value: object) -> object:
    if isinstance(value, dict) and len(value) > BIASES_MAX:
        raise ValueError(f"it has more than {BIASES_MAX:,} entries")
    return value


Limit = Annotated[int | None, BeforeValidator(_unlimited)]


class StreamOptions(Body):
    include_usage: bool | None = None


class ReplyBody(AskingBody, SamplingBody):
    """What chat and plain completions share."""

    # Which of several servers to ask. Here every kept prompt is near, and found by its tokens: the
    # key neither helps nor keeps apart.
    prompt_cache_key: Any = None
    stream_options: StreamOptions | None = None
    max_tokens: Limit = Field(None, ge=1)
    n: Whole = Field(None, ge=1, le=CHOICES_MAX)
    stop: str | Many[str] | None = None
    ignore_eos: bool | None = None
    response_format: dict[str, Any] | None = None
    logit_bias: Annotated[
        dict[str, Annotated[float, Field(ge=-100, le=100)]] | None, BeforeValidator(_countable)
    ] = None

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class FunctionCall(Body):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCallBody(Body):
    id: str | None = None
    function: FunctionCall


class MessageBody(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Many[str | dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: Many[ToolCallBody] | None = None
    tool_call_id: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    cache_control: Any = None
    prompt_cache_breakpoint: Any = None


class ChatBody(ReplyBody, ThinkingBody):
    messages: Many[MessageBody] = Field(min_length=1)
    max_completion_tokens: Limit = Field(None, ge=1)
    tools: Many[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Whole = Field(None, ge=0, le=LOGPROBS_MAX)


class CompletionBody(ReplyBody):
    prompt: str | Many[str] | Many[int] | Many[Many[int]]
    logprobs: Whole = Field(None, ge=0, le=LOGPROBS_MAX)


def refuse_unsupported(body: ReplyBody) -> None:
    """Raises UnsupportedFeature for a field that asks for more than we can do."""
    refuse_fields(body, UNSUPPORTED)


def conversation(
    body: ChatBody,
    *,
    model: str,
    settings: Settings,
    sight: Sight | None = None,
    album: Album = KEEPS_NOTHING,
) -> Conversation:
    effort, think, kwargs = thinking(body)
    reader = Reader(model, settings, sight, body.image_max_tokens, album.visit())
    messages = [_message(message, index, reader) for index, message in enumerate(body.messages)]
    return Conversation(
        arranged(
            messages,
            system=settings.system_message_policy,
            developer=settings.developer_message_policy,
        ),
        tools=tools_known(body.tools or []),
        thinking=think,
        reasoning_effort=effort,
        template_kwargs=kwargs,
    )


def terms(body: ReplyBody, defaults: SamplingParams) -> Terms:
    """How the reply is to be chosen and ended: the card's defaults where the body is silent."""
    limit, choice = body.max_tokens, ToolChoice()
    if isinstance(body, ChatBody):
        limit = limit if body.max_completion_tokens is None else body.max_completion_tokens
        choice = tool_choice(body.tool_choice, parallel=body.parallel_tool_calls is not False)
    return Terms(
        sampling=replace(
            sampling(body, defaults),
            logit_bias=_logit_bias(body.logit_bias),
            logprobs=_logprobs(body),
        ),
        max_tokens=limit,
        stop=stop_strings(body.stop, param="stop"),
        ignore_eos=bool(body.ignore_eos),
        n=body.n or 1,
        priority=body.priority,
        format=response_format(body.response_format, field="response_format"),
        **asdict(choice),
    )


def _logprobs(body: ReplyBody) -> int | None:
    if isinstance(body, CompletionBody):
        return body.logprobs
    assert isinstance(body, ChatBody)
    if body.top_logprobs and not body.logprobs:
        raise BadRequest(
            "top_logprobs is given without logprobs",
            fix="send logprobs: true with it",
            param="top_logprobs",
        )
    return (body.top_logprobs or 0) if body.logprobs else None


def _logit_bias(given: Mapping[str, float] | None) -> dict[int, float]:
    try:
        return {whole_number(token): bias for token, bias in (given or {}).items()}
    except ValueError as error:
        raise BadRequest(
            "logit_bias has a key that is not a token id",
            fix='write token ids in decimal, as in {"42": -100}',
            param="logit_bias",
        ) from error


def tools_known(given: list[dict[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Function tools as they came, key by key: their text opens the prompt, and must not vary.

    Only a mark for the cache is taken off, which a client moves from tool to tool.
    """
    tools, skipped = [], []
    for index, tool in enumerate(given):
        function = tool.get("function")
        if tool.get("type", "function") != "function":
            skipped.append(str(tool["type"]))
        elif not isinstance(function, dict) or not isinstance(function.get("name"), str):
            place = f"tools[{index}].function"
            raise BadRequest(f"{place}.name is missing", fix="name every function", param=place)
        else:
            tools.append(unmarked({**tool, "function": unmarked(function)}))
    warn_skipped(skipped, len(given))
    return tuple(tools)


def _message(body: MessageBody, index: int, reader: Reader) -> Message:
    thought = body.reasoning_content or body.reasoning
    content, marks, pictures = flat_text(
        body.content, place=f"messages[{index}].content", reader=reader
    )
    if body.cache_control or body.prompt_cache_breakpoint:  # of the whole message
        marks = tuple(dict.fromkeys((*marks, len(content or ""))))
    return Message(
        role="tool" if body.role == "function" else body.role,
        content=content,
        reasoning=thought if isinstance(thought, str) else None,
        tool_calls=tuple(map(_tool_call, body.tool_calls or ())),
        tool_call_id=body.tool_call_id,
        name=body.name,
        marks=marks,
        languages=languages(body.content),
        pictures=pictures,
    )


def _tool_call(body: ToolCallBody) -> ToolCall:
    arguments = body.function.arguments
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(body.id or "", body.function.name, arguments or "{}")

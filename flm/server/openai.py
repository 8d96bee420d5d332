"""OpenAI's request bodies, and what they mean in our own nouns.

Fields we do not know pass (agents send many); fields with an effect we cannot give are refused
by name, never dropped in silence.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from flm import console
from flm.core.chat import Conversation, Message, ToolCall
from flm.core.request import Priority, SamplingParams
from flm.engine.conversation import Terms
from flm.errors import BadRequest, UnsupportedFeature
from flm.server.content import flat_text, languages, unmarked
from flm.server.policies import arranged
from flm.server.residence import CLASSES, split_class
from flm.settings import Settings

CHOICES_MAX = 16  # replies asked for in one request: n times the prompts
STOPS_MAX, STOP_CHARS_MAX = 16, 256
LOGPROBS_MAX = 20
SALT_CHARS_MAX = 256
BIASES_MAX = 2**18  # no vocabulary has more tokens
TEMPERATURE_MIN = 1e-3  # below, the likeliest token is as good as certain: greedy
SAMPLING = (  # fields that mean the same in SamplingParams
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)

EFFORTS: Mapping[str, str] = {  # and the nearest that models were trained on
    "none": "none",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}

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


def _whole(value: object) -> object:
    """5.0 for 5, from languages with one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _unlimited(value: object) -> object:
    """-1, which llama.cpp and LM Studio read as no limit."""
    return None if _whole(value) == -1 else _whole(value)


def _countable(value: object) -> object:
    if isinstance(value, dict) and len(value) > BIASES_MAX:
        raise ValueError(f"it has more than {BIASES_MAX:,} entries")
    return value


ItemT = TypeVar("ItemT")
# The first wrong item is told, and a million others are not looked at.
Many = Annotated[list[ItemT], Field(fail_fast=True)]
Whole = Annotated[int | None, BeforeValidator(_whole)]
Limit = Annotated[int | None, BeforeValidator(_unlimited)]


class Body(BaseModel):
    """No value is converted: "1" is not a number, and 1 is not true."""

    model_config = ConfigDict(strict=True)


class StreamOptions(Body):
    include_usage: bool | None = None


class ReplyBody(Body):
    """What chat and plain completions share."""

    model_config = ConfigDict(extra="allow")

    model: str
    class_: Literal["interactive", "agent"] | None = Field(None, alias="class")
    cache_salt: str | None = Field(None, min_length=1, max_length=SALT_CHARS_MAX)
    # Which of several servers to ask. Here every kept prompt is near, and found by its tokens: the
    # key neither helps nor keeps apart.
    prompt_cache_key: Any = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Limit = Field(None, ge=1)
    n: Whole = Field(None, ge=1, le=CHOICES_MAX)
    stop: str | Many[str] | None = None
    ignore_eos: bool | None = None
    seed: Whole = Field(None, ge=-(2**63), lt=2**64)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: Whole = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10)
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


class Reasoning(Body):
    effort: str | None = None
    enabled: bool | None = None


class ChatBody(ReplyBody):
    messages: Many[MessageBody] = Field(min_length=1)
    max_completion_tokens: Limit = Field(None, ge=1)
    tools: Many[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Whole = Field(None, ge=0, le=LOGPROBS_MAX)
    reasoning_effort: str | None = None
    reasoning: Reasoning | None = None
    think: bool | str | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(ReplyBody):
    prompt: str | Many[str] | Many[int] | Many[Many[int]]
    logprobs: Whole = Field(None, ge=0, le=LOGPROBS_MAX)


def refuse_unsupported(body: ReplyBody) -> None:
    """Raises UnsupportedFeature for a field that asks for more than we can do."""
    extra = body.model_extra or {}
    for name, idle in UNSUPPORTED.items():
        if extra.get(name) is not None and extra[name] not in idle:
            raise _unsupported(name, f"{name} is not supported")
    if isinstance(body, ChatBody):
        form = (body.response_format or {}).get("type", "text")
        if form != "text":
            raise _unsupported("response_format", f"response_format {form!r} is not supported yet")
        choice = body.tool_choice
        kind = choice.get("type") if isinstance(choice, dict) else choice
        # "none" leaves the tools in the prompt, and takes what looks like a call for text: without
        # them its beginning, and with it what the prefix cache holds, would be another.
        if kind not in (None, "auto", "none"):
            raise _unsupported("tool_choice", f"tool_choice {kind!r} is not supported yet")
    if unknown := extra.keys() - UNSUPPORTED.keys():
        console.debug(f"ignored request fields: {', '.join(sorted(unknown))}")


def conversation(body: ChatBody, *, model: str, settings: Settings) -> Conversation:
    effort, thinking, kwargs = _thinking(body)
    messages = [_message(message, index, model) for index, message in enumerate(body.messages)]
    return Conversation(
        arranged(
            messages,
            system=settings.system_message_policy,
            developer=settings.developer_message_policy,
        ),
        tools=_tools(body.tools or []),
        thinking=thinking,
        reasoning_effort=effort,
        template_kwargs=kwargs,
    )


def terms(body: ReplyBody, defaults: SamplingParams) -> Terms:
    """How the reply is to be chosen and ended: the card's defaults where the body is silent."""
    limit = body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        limit = body.max_completion_tokens
    return Terms(
        sampling=_sampling(body, defaults),
        max_tokens=limit,
        stop=_stops(body.stop),
        ignore_eos=bool(body.ignore_eos),
        n=body.n or 1,
        tool_calls=not (isinstance(body, ChatBody) and body.tool_choice == "none"),
        priority=CLASSES.get(body.class_ or split_class(body.model)[1], Priority.INTERACTIVE),
    )


def _sampling(body: ReplyBody, defaults: SamplingParams) -> SamplingParams:
    given: dict[str, Any] = {
        name: getattr(body, name) for name in SAMPLING if getattr(body, name) is not None
    }
    if given.get("temperature", 1) < TEMPERATURE_MIN:
        given["temperature"] = 0.0
    if given.get("top_k") in (0, -1):
        given["top_k"] = None
    if "seed" in given:  # -1 is llama.cpp's and Ollama's word for any
        given["seed"] = None if given["seed"] == -1 else given["seed"] % 2**64
    return dataclasses.replace(
        defaults, **given, logit_bias=_logit_bias(body.logit_bias), logprobs=_logprobs(body)
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
        return {int(token): bias for token, bias in (given or {}).items()}
    except ValueError as error:
        raise BadRequest(
            "logit_bias has a key that is not a token id",
            fix='write token ids in decimal, as in {"42": -100}',
            param="logit_bias",
        ) from error


def _stops(given: str | list[str] | None) -> tuple[str, ...]:
    stops = tuple(stop for stop in ([given] if isinstance(given, str) else given or []) if stop)
    if len(stops) > STOPS_MAX or any(len(stop) > STOP_CHARS_MAX for stop in stops):
        raise BadRequest(
            f"stop takes up to {STOPS_MAX} texts of up to {STOP_CHARS_MAX} characters",
            fix="send fewer or shorter ones",
            param="stop",
        )
    return stops


def _thinking(body: ChatBody) -> tuple[str | None, bool | None, dict[str, Any]]:
    """(effort, whether to think, what else the template is given), from all the ways to say it.

    A plain yes or no outranks an effort; an effort other than "none" asks for thought.
    """
    kwargs = dict(body.chat_template_kwargs or {})
    reasoning = body.reasoning or Reasoning()
    given = (
        body.reasoning_effort,
        reasoning.effort,
        body.think if isinstance(body.think, str) else None,
        kwargs.pop("reasoning_effort", None),
    )
    effort = next((_effort(each) for each in given if each), None)
    switches = (
        kwargs.pop("enable_thinking", None),
        kwargs.pop("thinking", None),
        body.enable_thinking,
        body.think if isinstance(body.think, bool) else None,
        reasoning.enabled,
        None if effort is None else effort != "none",
    )
    thinking = next((bool(switch) for switch in switches if switch is not None), None)
    return None if effort == "none" else effort, thinking, kwargs


def _effort(given: object) -> str:
    """In the words that templates know."""
    if not isinstance(given, str) or given not in EFFORTS:
        raise BadRequest(
            f"reasoning_effort {str(given)[:40]!r} is not known",
            fix=f"take one of {', '.join(EFFORTS)}",
            param="reasoning_effort",
        )
    return EFFORTS[given]


def _tools(given: list[dict[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Function tools as they came, key by key: their text opens the prompt, and must not vary.

    Only a mark for the cache is taken off, which a client moves from tool to tool.
    """
    tools, skipped = [], []
    for index, tool in enumerate(given):
        function = tool.get("function")
        if tool.get("type", "function") != "function":
            skipped.append(index)
        elif not isinstance(function, dict) or not isinstance(function.get("name"), str):
            place = f"tools[{index}].function"
            raise BadRequest(f"{place}.name is missing", fix="name every function", param=place)
        else:
            tools.append(unmarked({**tool, "function": unmarked(function)}))
    if skipped:
        kind = f"{given[skipped[0]]['type']!r:.40}"
        console.warn(f"{len(skipped)} of {len(given)} tools skipped, not functions but {kind}")
    return tuple(tools)


def _message(body: MessageBody, index: int, model: str) -> Message:
    thought = body.reasoning_content or body.reasoning
    content, marks = flat_text(body.content, place=f"messages[{index}].content", model=model)
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
    )


def _tool_call(body: ToolCallBody) -> ToolCall:
    arguments = body.function.arguments
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(body.id or "", body.function.name, arguments or "{}")


def _unsupported(param: str, message: str) -> UnsupportedFeature:
    return UnsupportedFeature(message, fix=f"leave {param} out", param=param)

"""Chat templates: Jinja as Hugging Face has it, in a sandbox.

A template comes with the model's file, so from anywhere: it reaches nothing but what it is given,
and its loops and its text end at a limit. What it raises is said to whoever sent the conversation.
"""

import json
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from flm.core.chat import Conversation, Message, ToolCall
from flm.core.json_file import read_json_object
from flm.errors import BadModelFile, BadRequest

SOURCE_CHARS_MAX = 2**20
RENDERED_CHARS_MAX = 2**27
RENDER_S_MAX = 10.0

CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""  # for a model that ships no template

_FIX = "change the messages into what the model's chat template takes"

_render_ends_at: ContextVar[float] = ContextVar("_render_ends_at")


class ChatTemplate:
    """Raises BadModelFile when `source` does not parse. Safe to render from several threads."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        if len(source) > SOURCE_CHARS_MAX:
            raise BadModelFile(f"the chat template has more than {SOURCE_CHARS_MAX:,} characters")
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._template = _compile(source)

    @classmethod
    def load(cls, folder: Path, *, bos_token: str, eos_token: str) -> "ChatTemplate":
        """From chat_template.jinja, else tokenizer_config.json, else CHATML."""
        path = folder / "chat_template.jinja"
        source: object = None
        if path.is_file():
            source = path.read_text(encoding="utf-8", errors="replace")
        else:
            source = read_json_object(folder / "tokenizer_config.json").get("chat_template")
            if isinstance(source, list):  # several by name
                named = {one.get("name"): one for one in source if isinstance(one, dict)}
                source = named.get("default", {}).get("template")
        if source is not None and not isinstance(source, str):
            raise BadModelFile(f"{folder}: chat_template is not text")
        return cls(source or CHATML, bos_token=bos_token, eos_token=eos_token)

    def render(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool = True,
        now: datetime | None = None,
    ) -> str:
        """The prompt's text. `now` is what the template sees as the time, by default the time.

        Raises BadRequest, in the template's own words where it has any.
        """
        moment = now or datetime.now()
        variables = {
            "documents": None,
            **conversation.template_kwargs,
            **self._tokens,
            **_variables(conversation),
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": lambda format: moment.strftime(format),
        }
        token = _render_ends_at.set(time.monotonic() + RENDER_S_MAX)
        try:
            return "".join(_bounded(self._template.generate(variables)))
        except _RaisedByTemplate as error:
            raise BadRequest(str(error), fix=_FIX, param="messages") from error
        except Exception as error:
            raise BadRequest(
                f"the model's chat template failed: {str(error) or type(error).__name__}",
                fix=_FIX,
                param="messages",
            ) from error
        finally:
            _render_ends_at.reset(token)


def _variables(conversation: Conversation) -> dict[str, Any]:
    variables: dict[str, Any] = {
        "messages": [_message(message) for message in conversation.messages],
        "tools": [dict(tool) for tool in conversation.tools] or None,
    }
    if conversation.thinking is not None:
        variables["enable_thinking"] = conversation.thinking
    if conversation.reasoning_effort is not None:
        variables["reasoning_effort"] = conversation.reasoning_effort
    return variables


def _message(message: Message) -> dict[str, Any]:
    # Many templates add `content` to text unasked, so an absent one is "" and never None.
    fields: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.reasoning is not None:
        fields["reasoning_content"] = message.reasoning
    if message.tool_calls:
        fields["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        fields["name"] = message.name
    return fields


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": _arguments(call.arguments)}
    return {"type": "function", "id": call.id, "function": function}


def _arguments(text: str) -> Any:
    """What the text says as JSON, where templates expect an object; else the text itself."""
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text


class _RaisedByTemplate(Exception):
    """The template called raise_exception."""


def _raise_exception(message: object) -> NoReturn:
    raise _RaisedByTemplate(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own would escape for HTML and sort the keys."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _check_time() -> None:
    if time.monotonic() > _render_ends_at.get():
        raise TimeoutError(f"it ran for more than {RENDER_S_MAX:g} s")


def _check_product(left: object, right: object) -> None:
    for items, count in ((left, right), (right, left)):
        if isinstance(items, str | list | tuple) and isinstance(count, int):
            _check_length(len(items) * count)


def _check_length(length: int) -> None:
    if length > RENDERED_CHARS_MAX:
        raise OverflowError(f"it wrote more than {RENDERED_CHARS_MAX:,} characters")


def _timed(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _check_time()
        yield item


def _bounded(chunks: Iterable[str]) -> Iterator[str]:
    length = 0
    for chunk in chunks:
        length += len(chunk)
        _check_length(length)
        yield chunk


def _compile(source: str) -> Any:
    import jinja2

    try:
        tree = _environment().parse(source)
        for loop in tree.find_all(jinja2.nodes.For):
            loop.iter = jinja2.nodes.Filter(loop.iter, "timed", [], [], None, None)
        return _environment().from_string(tree)
    except jinja2.TemplateSyntaxError as error:
        raise BadModelFile(
            f"the chat template does not parse: line {error.lineno}: {error.message}"
        ) from error
    except (SyntaxError, RecursionError, jinja2.TemplateError) as error:
        raise BadModelFile(f"the chat template does not compile: {error}") from error


@cache
def _environment() -> Any:
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.runtime import Context
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what the model says, for training: here just its body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**"})

        def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            _check_time()
            return super().call(context, function, *args, **kwargs)

        def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
            if operator == "**":
                raise OverflowError("it raised a number to a power, which may take forever")
            _check_product(left, right)
            return super().call_binop(context, operator, left, right)

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters |= {"tojson": _to_json, "timed": _timed}
    environment.globals["raise_exception"] = _raise_exception
    return environment

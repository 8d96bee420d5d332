"""Chat templates: Jinja as Hugging Face has it, in a sandbox.

What a template raises is said to whoever sent the conversation.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from flm.core.chat import Conversation, Message, ToolCall
from flm.core.json_file import read_json_object
from flm.errors import BadModelFile, BadRequest
from flm.text.dialects.dialect import Dialect
from flm.text.dialects.recognise import recognise, tells_of_tools
from flm.text.sandbox import RaisedByTemplate, bounded, compiled, time_limit
from flm.text.translation import TURNS, languages_of, translates, with_languages

SOURCE_CHARS_MAX = 2**20

CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""  # for a model that ships no template

_FIX = "change the messages into what the model's chat template takes"


class ChatTemplate:
    """Raises BadModelFile when `source` does not parse. Safe to render from several threads."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        if len(source) > SOURCE_CHARS_MAX:
            raise BadModelFile(f"the chat template has more than {SOURCE_CHARS_MAX:,} characters")
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._template = _compile(source)
        # For a text without languages, where the model's own template takes none.
        self._turns = _compile(TURNS) if translates(source) else None

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

    @cached_property
    def dialect(self) -> Dialect:
        """How the model replies to what is rendered."""
        return recognise(self.render)

    @cached_property
    def tells_of_tools(self) -> bool:
        return tells_of_tools(self.render)

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
        template, asked = self._template, _variables(conversation)
        if self._turns:
            languages = languages_of(conversation)
            template = template if any(languages) else self._turns
            asked["messages"] = with_languages(asked["messages"], languages)
        variables = {
            "documents": None,
            **conversation.template_kwargs,
            **self._tokens,
            **asked,
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": lambda format: moment.strftime(format),
        }
        try:
            with time_limit():
                return bounded(template.generate(variables))
        except RaisedByTemplate as error:
            raise BadRequest(str(error), fix=_FIX, param="messages") from error
        except Exception as error:
            raise BadRequest(
                f"the model's chat template failed: {str(error) or type(error).__name__}",
                fix=_FIX,
                param="messages",
            ) from error


def texts(conversation: Conversation) -> Iterator[str]:
    """All that the template is given to write."""
    yield from _strings(_variables(conversation))
    yield from _strings(conversation.template_kwargs)
    yield from (each.content or "" for each in conversation.messages)  # pictures part it


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _strings(name)
            yield from _strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _strings(each)


def _variables(conversation: Conversation) -> dict[str, Any]:
    variables: dict[str, Any] = {
        "messages": [_message(message) for message in conversation.messages],
        "tools": [dict(tool) for tool in conversation.tools] or None,
    }
    if conversation.thinking is not None:  # Granite's and DeepSeek's call it thinking
        variables |= dict.fromkeys(("enable_thinking", "thinking"), conversation.thinking)
    if conversation.reasoning_effort is not None:
        variables["reasoning_effort"] = conversation.reasoning_effort
    return variables


def _message(message: Message) -> dict[str, Any]:
    # Many templates add `content` to text unasked, so an absent one is "" and never None.
    fields: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.pictures:
        fields["content"] = list(_parts(message))
    if message.reasoning is not None:
        fields["reasoning_content"] = message.reasoning
        # gpt-oss and LFM2.5 call it so, and gpt-oss refuses it beside content and calls.
        if not (message.content and message.tool_calls):
            fields["thinking"] = message.reasoning
    if message.tool_calls:
        fields["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        fields["name"] = message.name
    return fields


def _parts(message: Message) -> Iterator[dict[str, str]]:
    """Texts and pictures by turns."""
    content, start = message.content or "", 0
    for at, _ in message.pictures:
        if at > start:
            yield {"type": "text", "text": content[start:at]}
        yield {"type": "image"}
        start = at
    if start < len(content):
        yield {"type": "text", "text": content[start:]}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": _arguments(call.arguments)}
    return {"type": "function", "id": call.id, "function": function}


def _arguments(text: str) -> dict[str, Any]:
    """As the object that templates expect. What says none, as a call that was cut, is shown as it
    stands: it stays in the conversation, which has to go on.
    """
    try:
        said = json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        said = text
    if said is None:
        return {}
    return said if isinstance(said, dict) else {"arguments": text}


def _compile(source: str) -> Any:
    import jinja2

    try:
        return compiled(source)
    except jinja2.TemplateSyntaxError as error:
        raise BadModelFile(
            f"the chat template does not parse: line {error.lineno}: {error.message}"
        ) from error
    except (SyntaxError, RecursionError, jinja2.TemplateError) as error:
        raise BadModelFile(f"the chat template does not compile: {error}") from error

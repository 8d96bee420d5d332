"""Models that translate: templates of theirs take texts and pictures with their languages only.

The languages of a text are what its part says (as Hugging Face has it), else those of the text
before it, else the template's own variables (as llama.cpp has it). Where there are none, the text
is the whole prompt (as FastFlowLM has it), and the model gets it as Gemma's turns.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flm.core.chat import Conversation

SOURCE, TARGET = "source_lang_code", "target_lang_code"
TURNS = """\
{%- macro shown(content) -%}
{%- if content is string %}{{ content | trim }}{% else %}
{%- for part in content %}{{ '<start_of_image>' if part.type == 'image' else part.text | trim }}
{%- endfor %}{% endif %}
{%- endmacro -%}
{{- bos_token }}
{%- set said = namespace(system='') %}
{%- for message in messages %}
{%- if message.role == 'system' %}
{%- set said.system = said.system + message.content + '\n\n' %}
{%- else %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\n' }}
{{- said.system + shown(message.content) + '<end_of_turn>\n' }}
{%- set said.system = '' %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif -%}
"""


def translates(source: str) -> bool:
    """Whether a template is such a one."""
    return SOURCE in source and TARGET in source and "<start_of_turn>" in source


def languages_said(fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """What a text is in and what is wanted, by a part's fields or a template's variables."""
    source, target = fields.get(SOURCE), fields.get(TARGET)
    return (source, target) if isinstance(source, str) and isinstance(target, str) else None


def languages_of(conversation: Conversation) -> list[tuple[str, str] | None]:
    """Of each message."""
    last = languages_said(conversation.template_kwargs)
    found = []
    for message in conversation.messages:
        if message.role == "user":
            last = message.languages or last
        found.append(last if message.role == "user" else None)
    return found


def with_languages(
    fields: Sequence[dict[str, Any]], languages: Sequence[tuple[str, str] | None]
) -> list[dict[str, Any]]:
    """Messages as such a template takes them."""
    return [
        {**message, "content": _parts(message["content"], *codes)} if codes else message
        for message, codes in zip(fields, languages, strict=True)
    ]


def _parts(content: Any, source: str, target: str) -> list[dict[str, str]]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [{**part, SOURCE: source, TARGET: target} for part in parts]

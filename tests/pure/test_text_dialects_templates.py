"""A template tells its model's dialect, and what it renders of a reply reads back as that reply."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from flm.core.chat import Conversation, Message, ToolCall
from flm.text.dialects.dialect import Dialect
from flm.text.dialects.gemma import FUNCTION_GEMMA, GEMMA4
from flm.text.dialects.granite import GRANITE
from flm.text.dialects.harmony import HARMONY
from flm.text.dialects.hermes import HERMES, QWEN
from flm.text.dialects.lfm import LFM
from flm.text.dialects.llama import LLAMA
from flm.text.dialects.phi import PHI
from flm.text.dialects.tagged import PLAIN
from flm.text.template import CHATML, ChatTemplate
from tests.pure.written import TOOLS, Said, read

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "templates"
LISTED = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
TURNS = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for c in m.tool_calls or [] %}{% set f = c.function %}CALLS{% endfor %}
{{- '<|im_end|>\\n' }}{% endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""
ARGUMENTS = "{{ f.arguments | tojson }}"
NAMED = '{"name": "{{ f.name }}", "KEY": ' + ARGUMENTS + "}"
GEMMA_VALUE = """\
{%- macro value(v) -%}
{%- if v is string %}{{ QUOTE + v + QUOTE }}{% elif v is boolean %}{{ 'true' if v else 'false' }}
{%- elif v is mapping %}{{ '{' }}{% for k, one in v.items() %}{{ k ~ ':' ~ value(one) }}
{{- ',' if not loop.last }}{% endfor %}{{ '}' }}
{%- elif v is sequence %}[{% for one in v %}{{ value(one) }}{{ ',' if not loop.last }}{% endfor %}]
{%- else %}{{ v }}{% endif -%}
{%- endmacro -%}
"""
PYTHON = """\
{%- macro call(f) -%}{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}=
{%- if v is string %}'{{ v }}'{% elif v is mapping %}{{ v | tojson }}{% else %}{{ v }}{% endif -%}
{{ ', ' if not loop.last }}{% endfor %}){%- endmacro -%}
"""
HARMONY_TEMPLATE = """\
<|start|>developer<|message|>{% for t in tools or [] %}{{ t | tojson }}{% endfor %}<|end|>
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>
{{- m.thinking }}<|end|>{% endif %}
{%- for c in m.tool_calls or [] %}<|start|>assistant to=functions.{{ c.function.name }}<|channel|>
{{- 'commentary json<|message|>' ~ c.function.arguments | tojson }}<|call|>{% endfor %}
{%- if m.content %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}
{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""


def turns(calls: str, *, told: str = LISTED) -> str:
    return told + TURNS.replace("CALLS", calls)


def tagged_gemma(opens: str, closes: str, quote: str) -> str:
    call = "{{ OPENS ~ 'call:' ~ f.name ~ value(f.arguments) ~ CLOSES }}"
    whole = GEMMA_VALUE + turns(call)
    for name, mark in (("OPENS", opens), ("CLOSES", closes), ("QUOTE", quote)):
        whole = whole.replace(name, f"'{mark}'")
    return whole


SOURCES: Mapping[str, tuple[str, Dialect]] = {
    "hermes": (
        turns("<tool_call>\n" + NAMED.replace("KEY", "arguments") + "\n</tool_call>"),
        HERMES,
    ),
    "tools_first": ((FOLDER / "tools_first.jinja").read_text(), QWEN),
    "llama": (turns(NAMED.replace("KEY", "parameters")), LLAMA),
    "lfm": (
        PYTHON + turns("<|tool_call_start|>[{{ call(f) }}]<|tool_call_end|>"),
        LFM,
    ),
    "phi": (turns("<|tool_call|>{{ f | tojson }}<|/tool_call|>"), PHI),
    "granite": (turns("<|tool_call|>[{{ f | tojson }}]"), GRANITE),
    "granite4": (turns("<tool_call>\n{{ f | tojson }}\n</tool_call>"), HERMES),
    "gemma4": (tagged_gemma("<|tool_call>", "<tool_call|>", '<|"|>'), GEMMA4),
    "functiongemma": (
        tagged_gemma("<start_function_call>", "<end_function_call>", "<escape>"),
        FUNCTION_GEMMA,
    ),
    "harmony": (HARMONY_TEMPLATE, HARMONY),
    # Told in words alone, as Granite 3 is: calls of a history are not rendered.
    "granite3": (turns("", told="Answer with <|tool_call|> and a list. " + LISTED), GRANITE),
    "chatml": (CHATML, PLAIN),
    "dated": ((FOLDER / "dated.jinja").read_text(), PLAIN),
    "system_in_user": ((FOLDER / "system_in_user.jinja").read_text(), PLAIN),
    # It would render calls, but tells of no tools: whatever comes is no call.
    "untold": (turns("<tool_call>{{ f | tojson }}</tool_call>", told=""), PLAIN),
}
SINGLE = ("llama",)
CALLING = [name for name, (_, dialect) in SOURCES.items() if dialect is not PLAIN]
CALLING.remove("granite3")


def template(name: str) -> ChatTemplate:
    return ChatTemplate(SOURCES[name][0], bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("name", SOURCES)
def test_the_template_tells_the_dialect(name: str) -> None:
    assert template(name).dialect is SOURCES[name][1]


CALLS = (
    ToolCall("call_1", "weather", '{"city": "São Paulo", "days": 3, "metric": true}'),
    ToolCall("call_2", "write", '{"path": "a.md", "content": "# One\\n\\ntwo  {3}"}'),
    ToolCall("call_3", "write", '{"path": "b", "content": "", "tags": ["x", "y z"]}'),
    ToolCall("call_4", "now", "{}"),
)


@pytest.mark.parametrize("name", CALLING)
@pytest.mark.parametrize("calls", [CALLS[:1], CALLS[1:2], CALLS[2:3], CALLS[3:], CALLS])
def test_calls_that_are_rendered_read_back(name: str, calls: tuple[ToolCall, ...]) -> None:
    if name in SINGLE:
        calls = calls[:1]
    render = template(name).render
    asked = (Message("user", "Why?"),)
    before = render(Conversation(asked, tools=TOOLS, thinking=False))
    said = Message("assistant", None, tool_calls=calls)
    after = render(Conversation((*asked, said), tools=TOOLS), add_generation_prompt=False)
    # A template may open a thought for the model to answer in, which history does not have.
    start = before.removesuffix("<think>\n\n</think>\n\n")
    assert after.startswith(start)
    reply = after[len(start) :].rpartition("<|im_end|>")[0] or after[len(start) :]
    found = read(SOURCES[name][1], reply)
    assert [name for name, _ in found.calls] == [call.name for call in calls]
    assert [json.loads(text) for _, text in found.calls] == [
        json.loads(call.arguments) for call in calls
    ]
    assert not found.content


def test_a_thought_reaches_templates_by_either_name() -> None:
    said = Message("assistant", "", "I look.", tool_calls=CALLS[3:])
    after = template("harmony").render(Conversation((Message("user", "Why?"), said), tools=TOOLS))
    assert "analysis<|message|>I look.<|end|>" in after
    reply = after.partition("<|end|><|start|>assistant")[2]
    assert read(HARMONY, reply) == Said("", (("now", "{}"),), "I look.")


def test_thinking_reaches_templates_by_either_name() -> None:
    for name in ("thinking", "enable_thinking"):
        source = f"{{{{ {name} if {name} is defined else 'silent' }}}}"
        rendered = [
            ChatTemplate(source, bos_token="", eos_token="").render(
                Conversation((), thinking=thinking)
            )
            for thinking in (True, False, None)
        ]
        assert rendered == ["True", "False", "silent"]

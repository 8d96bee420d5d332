"""Replies as models write them, dialect by dialect, and what each of them says."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from flm.core.chat import Delta, DeltaKind, joined
from flm.text.dialects.dialect import Dialect
from flm.text.dialects.gemma import FUNCTION_GEMMA, GEMMA3, GEMMA4
from flm.text.dialects.granite import GRANITE
from flm.text.dialects.harmony import HARMONY
from flm.text.dialects.hermes import HERMES, QWEN
from flm.text.dialects.lfm import LFM
from flm.text.dialects.llama import LLAMA
from flm.text.dialects.phi import PHI
from flm.text.dialects.tagged import PLAIN

DIALECTS = (
    HERMES,
    QWEN,
    LLAMA,
    LFM,
    PHI,
    GRANITE,
    GEMMA4,
    FUNCTION_GEMMA,
    GEMMA3,
    HARMONY,
    PLAIN,
)


def function(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TEXT = {"type": "string"}
TOOLS = (
    function("weather", city=TEXT, days={"type": "integer"}, metric={"type": "boolean"}),
    function("write", path=TEXT, content=TEXT, tags={"type": "array", "items": TEXT}),
    function("now"),
)


class Said(NamedTuple):
    """`calls` are (name, arguments as JSON text)."""

    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    thought: str = ""


def said(deltas: Iterable[Delta]) -> Said:
    """Fails where deltas are not what a client can put together."""
    texts = {DeltaKind.CONTENT: "", DeltaKind.REASONING: ""}
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        assert delta.text
        if delta.kind is DeltaKind.CALL:
            assert delta.index == len(calls)
            assert delta.call_id.startswith("call_")
            calls.append((delta.text, ""))
        elif delta.kind is DeltaKind.ARGUMENTS:
            assert delta.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.text)
        else:
            texts[delta.kind] += delta.text
    return Said(texts[DeltaKind.CONTENT], tuple(calls), texts[DeltaKind.REASONING])


def read(
    dialect: Dialect,
    *pieces: str,
    tools: tuple[dict[str, Any], ...] = TOOLS,
    thinking: bool = False,
    cut: bool = False,
) -> Said:
    reader = dialect.open(tools, thinking)
    deltas = [delta for piece in pieces for delta in reader.add(piece)]
    deltas += reader.finish(cut=cut)
    assert said(deltas) == said(joined(deltas))
    return said(deltas)


PARIS = ("weather", '{"city": "Paris"}')
NOW = ("now", "{}")
WROTE = ("write", r'{"path": "a.py", "content": "print(\"hi\")\n\tx = {1: [2]}\n"}')

WRITTEN: tuple[tuple[Dialect, str, Said], ...] = (
    (
        HERMES,
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        Said(calls=(PARIS,)),
    ),
    (
        HERMES,
        "<think>\nThey want weather.\n</think>\n\nLet me look.\n\n<tool_call>\n"
        '{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n<tool_call>\n'
        '{"name": "now", "arguments": {}}\n</tool_call>',
        Said("Let me look.", (PARIS, NOW), "They want weather.\n"),
    ),
    (
        HERMES,
        '<tool_call>{"arguments": {"city": "Paris"}, "name": "weather"}</tool_call>\nSo it is.',
        Said("So it is.", (PARIS,)),
    ),
    (
        HERMES,
        r'<tool_call>{"name": "write", "arguments": {"path": "a.py", "content": '
        r'"print(\"hi\")\n\tx = {1: [2]}\n"}}</tool_call>',
        Said(calls=(WROTE,)),
    ),
    (HERMES, "The tag <tool_call> opens a call.", Said("The tag <tool_call> opens a call.")),
    (
        QWEN,
        "I check.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        Said("I check.", (("weather", '{"city": "Paris", "days": 3, "metric": true}'), NOW)),
    ),
    (
        QWEN,
        '<tool_call>\n<function=write>\n<parameter=path>\n5\n</parameter>\n<parameter=content>\n{"a":'
        ' 1}\n\n<p>b</p>\n\n</parameter>\n<parameter=tags>\n["x", "y"]\n</parameter>\n</function>\n'
        "</tool_call>",
        Said(
            calls=(
                (
                    "write",
                    r'{"path": "5", "content": "{\"a\": 1}\n\n<p>b</p>\n", "tags": ["x", "y"]}',
                ),
            )
        ),
    ),
    (
        QWEN,
        "<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        Said(calls=(PARIS,)),
    ),
    (LLAMA, '{"name": "weather", "parameters": {"city": "Paris"}}', Said(calls=(PARIS,))),
    (
        LLAMA,
        '<|python_tag|>{"type": "function", "name": "weather", "parameters": {"city": "Paris"}};'
        ' {"type": "function", "name": "now", "parameters": {}}',
        Said(calls=(PARIS, NOW)),
    ),
    (LLAMA, '<function=weather>{"city": "Paris"}</function>', Said(calls=(PARIS,))),
    (LLAMA, '{"name": "Bob", "age": 3}', Said('{"name": "Bob", "age": 3}')),
    (LLAMA, 'As JSON: {"name": "now"}', Said('As JSON: {"name": "now"}')),
    (
        LFM,
        '<|tool_call_start|>[weather(city="Paris"), now()]<|tool_call_end|>Checking.',
        Said("Checking.", (PARIS, NOW)),
    ),
    (
        LFM,
        "<|tool_call_start|>[write(path='it's', tags=['a', None, True], content={'k': -1.5e3})]"
        "<|tool_call_end|>",
        Said(
            calls=(
                (
                    "write",
                    '{"path": "it\'s", "tags": ["a", null, true], "content": {"k": -1.5e3}}',
                ),
            )
        ),
    ),
    (LFM, "<|tool_call_start|>[weather('Paris')]<|tool_call_end|>", Said(calls=(PARIS,))),
    (
        LFM,
        '<|tool_call_start|>[{"name": "weather", "arguments": {"city": "Paris"}, "id": "1"}]'
        "<|tool_call_end|>",
        Said(calls=(PARIS,)),
    ),
    (
        PHI,
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "now"}]'
        "<|/tool_call|>",
        Said(calls=(PARIS, NOW)),
    ),
    (
        PHI,
        '<|tool_call|>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}<|/tool_call|>',
        Said(calls=(PARIS,)),
    ),
    (PHI, 'functools[{"name": "now", "arguments": {}}]', Said(calls=(NOW,))),
    (
        GRANITE,
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}]',
        Said(calls=(PARIS,)),
    ),
    (GRANITE, '<tool_call>{"name": "now", "arguments": null}', Said(calls=(NOW,))),
    (
        GEMMA4,
        '<|channel>thought\nHm.<channel|><|tool_call>call:weather{city:<|"|>Paris<|"|>}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>",
        Said(calls=(PARIS, NOW), thought="Hm."),
    ),
    (
        GEMMA4,
        '<|tool_call>call:write{content:<|"|>a "b" {c}\\d\n<|"|>,tags:[<|"|>x<|"|>,1,false]}'
        "<tool_call|>",
        Said(calls=(("write", r'{"content": "a \"b\" {c}\\d\n", "tags": ["x", 1, false]}'),)),
    ),
    (
        FUNCTION_GEMMA,
        "<start_function_call>call:weather{city:<escape>Paris<escape>, days:2}<end_function_call>",
        Said(calls=(("weather", '{"city": "Paris", "days": 2}'),)),
    ),
    (GEMMA3, '```tool_code\nprint(weather(city="Paris"))\n```', Said(calls=(PARIS,))),
    (GEMMA3, "```python\nweather()\n```", Said("```python\nweather()\n```")),
    (
        HARMONY,
        "<|channel|>analysis<|message|>Weather.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.weather <|constrain|>json<|message|>{"city":"Paris"}',
        Said(calls=(PARIS,), thought="Weather."),
    ),
    (
        HARMONY,
        ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Paris"}<|call|>'
        "<|start|>assistant to=functions.now<|channel|>commentary<|message|>",
        Said(calls=(PARIS, NOW)),
    ),
    (
        HARMONY,
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>"
        "Two.<|end|><|start|>assistant<|channel|>commentary<|message|>First I look.<|end|><|start|>"
        "assistant<|channel|>final<|message|>So **it** is.<|return|>",
        Said("First I look.\n\nSo **it** is.", thought="One.\n\nTwo."),
    ),
    (HARMONY, "I just talk.", Said("I just talk.")),
    (PLAIN, "<tool_call>{}</tool_call>", Said("<tool_call>{}</tool_call>")),
)

"""Chat templates render as Hugging Face renders them, and cannot hurt."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import flm.text.sandbox
from flm.core.chat import Conversation, Message, ToolCall
from flm.errors import BadModelFile, BadRequest
from flm.text.template import CHATML, ChatTemplate

TEMPLATES = Path(__file__).resolve().parents[1] / "fixtures" / "templates"
NAMES = ["dated", "system_in_user", "tools_first"]
USER = Message("user", "Hi <b> é")
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "<é>", "parameters": {"b": 1, "a": None}},
}


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>")


def fixture(name: str) -> ChatTemplate:
    return template((TEMPLATES / f"{name}.jinja").read_text())


def render(source: str, *messages: Message, **fields: Any) -> str:
    return template(source).render(Conversation(messages or (USER,), **fields))


def called(arguments: str, content: str | None = None) -> tuple[Message, ...]:
    call = ToolCall("call_1", "f", arguments)
    return (
        USER,
        Message("assistant", content, tool_calls=(call,)),
        Message("tool", "42", tool_call_id="call_1", name="f"),
    )


def test_dated_template_sees_the_given_time() -> None:
    conversation = Conversation((Message("system", "Be kind."), USER), tools=(TOOL,))
    text = fixture("dated").render(conversation, now=datetime(2026, 1, 2))
    assert text == (
        "<|im_start|>system\nToday is 02 Jan 2026.\nBe kind.\n"
        '{\n  "type": "function",\n  "function": {\n    "name": "f",\n    "description": "<é>",\n'
        '    "parameters": {\n      "b": 1,\n      "a": null\n    }\n  }\n}\n'
        "<|im_end|>\n<|im_start|>user\nHi <b> é<|im_end|>\n<|im_start|>assistant\n"
    )


def test_system_text_may_stand_in_the_first_user_turn() -> None:
    conversation = Conversation((Message("system", "S"), USER, Message("assistant", "A")))
    assert fixture("system_in_user").render(conversation, add_generation_prompt=False) == (
        "<bos><start_of_turn>user\nS\n\nHi <b> é<end_of_turn>\n"
        "<start_of_turn>model\nA<end_of_turn>\n"
    )


@pytest.mark.parametrize(
    ("thinking", "ending"), [(None, "<think>\n"), (True, "<think>\n"), (False, "</think>\n\n")]
)
def test_thinking_is_the_templates_to_decide_unless_asked(
    thinking: bool | None, ending: str
) -> None:
    text = fixture("tools_first").render(Conversation((USER,), thinking=thinking))
    assert text.endswith(ending)


def test_thoughts_are_passed_as_reasoning_content() -> None:
    messages = (USER, Message("assistant", "A", reasoning="R"))
    assert "<think>\nR\n</think>\n\nA" in fixture("tools_first").render(Conversation(messages))


@pytest.mark.parametrize("name", ["dated", "tools_first"])
def test_null_content_of_a_tool_call_crashes_no_template(name: str) -> None:
    text = fixture(name).render(Conversation(called('{"x": [1]}'), tools=(TOOL,)))
    assert "None" not in text
    assert "42" in text


def test_null_content_is_empty_text_to_templates_that_add_it() -> None:
    assert render(CHATML, *called("{}")).count("<|im_start|>assistant\n<|im_end|>") == 1


def test_tool_calls_are_given_as_hugging_face_gives_them() -> None:
    text = render("{{ messages[1:] | tojson }}", *called('{"b": 1, "a": "é"}'))
    assert json.loads(text) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "type": "function",
                    "id": "call_1",
                    "function": {"name": "f", "arguments": {"b": 1, "a": "é"}},
                }
            ],
        },
        {"role": "tool", "content": "42", "tool_call_id": "call_1", "name": "f"},
    ]


@pytest.mark.parametrize("text", ["", " ", "null"])
def test_no_arguments_are_an_empty_object(text: str) -> None:
    source = "{{ messages[1].tool_calls[0].function.arguments | tojson }}"
    assert json.loads(render(source, *called(text))) == {}


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "9" * 5000, "[1]", '"a"', '{"a": 1'])
def test_arguments_that_are_no_object_are_shown_as_they_stand(text: str) -> None:
    source = (
        "{% for k, v in messages[1].tool_calls[0].function.arguments | items %}{{ v }}{% endfor %}"
    )
    assert render(source, *called(text)) == text


def test_tojson_is_hugging_faces() -> None:
    source = "{{ tools[0].function | tojson }}|{{ {'b': 1, 'a': '<é>'} | tojson(sort_keys=true) }}|"
    source += "{{ [1, 2] | tojson(separators=(',', ':')) }}|{{ 'é' | tojson(ensure_ascii=true) }}"
    assert render(source, tools=(TOOL,)) == (
        '{"name": "f", "description": "<é>", "parameters": {"b": 1, "a": null}}'
        '|{"a": "<é>", "b": 1}|[1,2]|"\\u00e9"'
    )


def test_variables_are_hugging_faces() -> None:
    source = (
        "{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ documents is none }}"
        "{{ enable_thinking is defined }}{{ reasoning_effort is defined }}"
        "{{ add_generation_prompt }}"
    )
    assert render(source) == "<s></s>TrueTrueFalseFalseTrue"
    fields: dict[str, Any] = {"thinking": False, "reasoning_effort": "low"}
    assert render("{{ enable_thinking }}{{ reasoning_effort }}", **fields) == "Falselow"


def test_a_clients_variables_are_seen_and_override_nothing_of_ours() -> None:
    kwargs = {"date_string": "today", "messages": [], "bos_token": "x", "enable_thinking": True}
    source = "{{ date_string }}{{ messages | length }}{{ bos_token }}{{ enable_thinking }}"
    assert render(source, template_kwargs=kwargs) == "today1<s>True"
    assert render(source, template_kwargs=kwargs, thinking=False) == "today1<s>False"


def test_blocks_are_trimmed_and_loops_controlled() -> None:
    source = """\
{% for m in messages %}
    {% if loop.index > 2 %}
        {% break %}
    {% elif loop.first %}
        {% continue %}
    {% endif %}
{{ m.content }}{{ loop.last }}
{% endfor %}
{% generation %}
{{ 'x' }}
{% endgeneration %}
"""
    assert render(source, USER, Message("user", "b"), Message("user", "c")) == "bFalse\nx\n"


def test_loops_run_over_all_that_jinja_loops_over() -> None:
    source = (
        "{% for x in [1, 2] %}{{ loop.length }}{{ x }}{% else %}no{% endfor %}"
        "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.previtem is defined }}{% endfor %}"
        "{% for c in 'xy' if c != 'x' %}{{ c }}{% endfor %}"
        "{% for n in nothing %}{% else %}no{% endfor %}"
    )
    assert render(source) == "2122a1Falseyno"


def test_the_templates_own_words_reach_the_client() -> None:
    for name, messages, words in [
        ("tools_first", (Message("system", "S"),), "this template needs a user message"),
        ("system_in_user", (USER, USER), "roles must alternate user and assistant"),
    ]:
        with pytest.raises(BadRequest) as caught:
            fixture(name).render(Conversation(messages))
        assert caught.value.message == words
        assert caught.value.fix


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ nothing.at_all }}", "'nothing' is undefined"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{{ 1 + 'a' }}", "unsupported operand"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{{ range(10000000) }}", "[Rr]ange"),
        ("{{ 9**9**9**9 }}", "power"),
        ("{{ 'x' * 10000000000 }}", "wrote more than"),
        ("{% for i in range(9999) %}{{ 'x' * 100000 }}{% endfor %}", "wrote more than"),
        ("{{ strftime_now(3) }}", "must be str"),
        ("{{ missing | tojson }}", "not JSON serializable"),
    ],
)
def test_a_template_that_fails_is_a_bad_request(source: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) ~ m(n - 1) }}{% endif %}{% endmacro %}{{ m(90) }}",
        "{% for m in messages recursive %}{{ loop(messages) ~ loop(messages) }}{% endfor %}",
    ],
)
def test_a_template_that_runs_too_long_is_ended(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flm.text.sandbox, "RENDER_S_MAX", 0.02)
    with pytest.raises(BadRequest, match=r"ran for more than|recursion"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ x",
        "{% bogus %}",
        "{% generation %}",
        "{{ x | no_such_filter }}",
        "{% if 1 %}" * 200 + "{% endif %}" * 200,
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "x" * (2**20 + 1),
    ],
)
def test_a_template_that_does_not_parse_is_a_bad_model_file(source: str) -> None:
    with pytest.raises(BadModelFile, match="the chat template") as caught:
        template(source)
    assert caught.value.fix


def test_a_folders_template_is_its_file_or_its_configs_or_chatml(tmp_path: Path) -> None:
    def loaded() -> str:
        conversation = Conversation((USER,))
        return ChatTemplate.load(tmp_path, bos_token="", eos_token="").render(conversation)

    assert loaded() == "<|im_start|>user\nHi <b> é<|im_end|>\n<|im_start|>assistant\n"
    config = tmp_path / "tokenizer_config.json"
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert loaded() == "yes"
    config.write_text(json.dumps({"chat_template": "one"}))
    assert loaded() == "one"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert loaded() == "file"
    (tmp_path / "chat_template.jinja").unlink()
    config.write_text('{"chat_template": 3}')
    with pytest.raises(BadModelFile, match="chat_template"):
        loaded()

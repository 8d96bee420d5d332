"""Boundaries are where other prompts part from this one, whatever the template makes of them."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flm.core.chat import Conversation, Message, ToolCall
from flm.core.prompt import BoundaryKind, Prompt
from flm.errors import BadRequest
from flm.prefix.boundaries import HEADS_MAX, BoundaryFinder, text_prompt
from flm.text.template import CHATML, ChatTemplate
from flm.text.tokenizer import Tokenizer
from tests.pure.explained import chat, system, user
from tests.pure.vocabularies import FIXTURE

TEMPLATES = Path(__file__).resolve().parents[1] / "fixtures" / "templates"
TOKENIZER = Tokenizer.load(FIXTURE)
NOW = datetime(2026, 3, 1, 12)
HEAD, HINT, TURN, OPENER, END = (
    BoundaryKind.HEAD,
    BoundaryKind.HINT,
    BoundaryKind.TURN,
    BoundaryKind.OPENER,
    BoundaryKind.END,
)

# Thoughts are dropped once a newer user message stands there; the model opens them itself.
DROPS = """\
{%- set last = namespace(user=-1) -%}
{%- for m in messages if m.role == 'user' -%}{% set last.user = messages.index(m) %}{%- endfor -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- if m.reasoning_content and loop.index0 > last.user -%}
{{- '<think>' + m.reasoning_content + '</think>' -}}
{%- endif -%}
{{- m.content + (m.tool_calls | tojson if m.tool_calls else '') + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
# No special token anywhere.
PLAIN = """\
{%- for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor -%}
{%- if add_generation_prompt -%}{{ 'assistant:' }}{%- endif -%}
"""
COUNTED = "{{ messages | length }} messages<|im_end|>" + CHATML

SOURCES = {
    "chatml": CHATML,
    "drops": DROPS,
    "plain": PLAIN,
    "counted": COUNTED,
    **{path.stem: path.read_text() for path in TEMPLATES.glob("*.jinja")},
}
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "description": "to look", "parameters": {}}}
    for name in ("look", "find")
)


class CountingTemplate(ChatTemplate):
    renders = 0

    def render(self, *args: Any, **kwargs: Any) -> str:
        self.renders += 1
        return super().render(*args, **kwargs)


def template(name: str) -> CountingTemplate:
    return CountingTemplate(SOURCES[name], bos_token="<|im_start|>", eos_token="<|im_end|>")


def find(name: str, conversation: Conversation) -> Prompt:
    return BoundaryFinder(template(name), TOKENIZER).find(conversation, now=NOW)


def says(text: str | None, *, thought: str | None = None, calls: str = "") -> Message:
    tool_calls = (ToolCall("1", calls, '{"at": 1}'),) if calls else ()
    return Message("assistant", text, thought, tool_calls)


def result(text: str) -> Message:
    return Message("tool", text, tool_call_id="1", name="look")


def shared(prompt: Prompt, kind: BoundaryKind) -> str:
    """What the prompt shares there, as text; nothing where it has no such boundary."""
    offsets = {boundary.kind: boundary.offset for boundary in prompt.boundaries}
    return TOKENIZER.decode(prompt.tokens[: offsets.get(kind, 0)], skip_special=False)


# --- what they promise, for any conversation ---

texts = st.lists(
    st.sampled_from(["the", " which", "\n", " ", "7", "7 +", "Which", "<|im_end|>", "é", "Done"]),
    max_size=6,
).map("".join)
replies = texts.map(lambda text: "so" + text)  # without white space to begin with
calls = st.sampled_from(["look", "find", "go"])


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    messages = [system(draw(texts))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 2))):
        messages += [user(draw(texts)), says(draw(replies), thought=draw(st.none() | texts))]
    messages.append(user(draw(texts)))
    for _ in range(draw(st.integers(0, 2))):
        thought = draw(st.none() | texts)
        messages += [says(draw(st.none() | replies), thought=thought, calls=draw(calls))]
        messages += [result(draw(texts))]
    return chat(*messages, tools=TOOLS[: draw(st.integers(0, 2))])


@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_other_conversations_share_exact_tokens_up_to_them(name: str, data: Any) -> None:
    renderer = template(name)
    finder = BoundaryFinder(renderer, TOKENIZER)

    def encoded(conversation: Conversation) -> tuple[int, ...]:
        return tuple(TOKENIZER.encode(renderer.render(conversation, now=NOW)))

    for conversation in data.draw(st.lists(conversations(), min_size=1, max_size=3)):
        try:
            tokens = encoded(conversation)
        except BadRequest:
            with pytest.raises(BadRequest):
                finder.find(conversation, now=NOW)
            continue
        prompt = finder.find(conversation, now=NOW)
        assert prompt.tokens == tokens
        assert prompt.boundaries[-1].offset == len(tokens)
        stem = tuple(message for message in conversation.messages[:1] if message.role == "system")
        others = {
            HEAD: (*stem, user(data.draw(texts))),
            TURN: (*conversation.messages, says(data.draw(replies)), user(data.draw(texts))),
            OPENER: (
                *conversation.messages,
                says(data.draw(st.none() | replies), calls=data.draw(calls)),
                result(data.draw(texts)),
            ),
        }
        for boundary in prompt.boundaries:
            if boundary.kind in others:
                other = encoded(replace(conversation, messages=others[boundary.kind]))
                assert other[: boundary.offset] == tokens[: boundary.offset], boundary


# --- where they are ---


def test_the_head_has_system_and_tools_wherever_a_template_puts_them() -> None:
    for name in ("tools_first", "dated", "system_in_user"):
        prompt = find(name, chat(system("Be brief."), user("Why?"), tools=TOOLS))
        head = shared(prompt, HEAD)
        assert "Be brief." in head
        assert ("find" in head) == (name != "system_in_user"), "which knows no tools"
        assert "Why" not in head


def test_a_message_that_begins_like_a_probe_adds_nothing_to_the_head() -> None:
    heads = {
        shared(find("chatml", chat(system("Be brief."), user(text))), HEAD)
        for text in ("Which way is up?", "7 + 3 + 1", "\n\nWell", " so", "Why?")
    }
    assert heads == {"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user"}


def test_without_system_and_tools_there_is_no_head() -> None:
    assert not shared(find("chatml", chat(user("Why?"))), HEAD)


def test_a_prompt_too_long_to_run_is_not_searched() -> None:
    """65,000 messages are refused in the time of one rendering, not of four."""
    finder = BoundaryFinder(template("chatml"), TOKENIZER)
    conversation = Conversation((Message("system", "Be brief."), Message("user", "Hello there.")))
    whole = finder.find(conversation, now=NOW, length_max=1000)
    cut = finder.find(conversation, now=NOW, length_max=4)
    assert len(whole.boundaries) > 1
    assert cut == text_prompt(whole.tokens)


def test_boundaries_at_one_offset_are_one_named_for_what_serves_longest() -> None:
    prompt = find("chatml", chat(system("Be brief."), user("Why?"), tools=TOOLS))
    assert [boundary.kind for boundary in prompt.boundaries] == [HEAD, TURN]
    assert prompt.boundaries[-1].offset == len(prompt.tokens)


def test_the_turn_ends_before_the_thought_that_the_prompt_opens() -> None:
    prompt = find("tools_first", chat(system("Be brief."), user("Why?")))
    assert shared(prompt, END).endswith("<|im_start|>assistant\n<think>\n")
    assert shared(prompt, TURN).endswith("Why?<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("name", ["tools_first", "drops"])
def test_in_a_tool_loop_the_turn_stays_where_its_thoughts_will_be_dropped(name: str) -> None:
    """https://github.com/QwenLM/Qwen3.8/issues/131: the history was read again from its start."""
    asked = [system("Be brief."), user("Why?")]
    loop = [says(None, thought="let me see", calls="look"), result("it is so")] * 3
    prompt = find(name, chat(*asked, *loop, tools=TOOLS))
    assert shared(prompt, TURN).endswith("Why?<|im_end|>\n<|im_start|>assistant\n")
    assert shared(prompt, TURN).count("assistant") == 1
    step = shared(prompt, OPENER) or shared(prompt, END)
    assert step.count("it is so") == 3, "but its next step shares all of it"


def test_a_future_that_the_template_refuses_drops_its_boundary_only() -> None:
    conversation = chat(system("Be brief."), user("Why?"), tools=TOOLS)
    prompt = find("system_in_user", conversation)
    assert shared(prompt, TURN).endswith("model\n")
    assert not shared(prompt, OPENER), "roles must alternate, and a tool is none of them"
    refuses = "{{ raise_exception('too long') if messages | length > 1 }}{{ messages[0].content }}"
    finder = BoundaryFinder(
        ChatTemplate(refuses, bos_token="", eos_token=""),
        TOKENIZER,
    )
    prompt = finder.find(chat(user("Why?"), tools=TOOLS), now=NOW)
    assert [boundary.kind for boundary in prompt.boundaries] == [END]


def test_a_template_that_begins_with_what_changes_has_nothing_but_an_end() -> None:
    messages = system("Be brief."), user("Why?"), says("So."), user("And?")
    assert [boundary.kind for boundary in find("counted", chat(*messages)).boundaries] == [END]


def test_a_prompt_of_nothing_has_no_boundary() -> None:
    finder = BoundaryFinder(ChatTemplate("{{ '' }}", bos_token="", eos_token=""), TOKENIZER)
    assert finder.find(chat(user("Why?")), now=NOW) == Prompt(())


def test_plain_text_has_an_end() -> None:
    prompt = text_prompt([5, 6, 7])
    assert prompt.tokens == (5, 6, 7)
    assert [(boundary.offset, boundary.kind) for boundary in prompt.boundaries] == [(3, END)]


# --- the clock, and what is remembered ---


def test_all_is_rendered_as_of_one_moment_and_a_new_day_has_a_new_head() -> None:
    finder = BoundaryFinder(template("dated"), TOKENIZER)
    conversation = chat(system("Be brief."), user("Why?"))
    for day in range(3):
        prompt = finder.find(conversation, now=NOW + timedelta(days=day))
        assert f"Today is 0{1 + day} Mar 2026.\nBe brief." in shared(prompt, HEAD)
        assert shared(prompt, TURN).endswith("assistant\n")


def test_the_head_is_rendered_with_the_request_s_own_options() -> None:
    options = {"date_string": "Sunday"}
    conversation = Conversation((system("Be brief."), user("Why?")), template_kwargs=options)
    assert "Today is Sunday.\nBe brief." in shared(find("dated", conversation), HEAD)


def test_a_head_is_rendered_once() -> None:
    renderer = template("tools_first")
    finder = BoundaryFinder(renderer, TOKENIZER)
    conversation = chat(system("Be brief."), user("Why?"), tools=TOOLS)
    finder.find(conversation, now=NOW)
    renderer.renders = 0
    longer = chat(*conversation.messages, says("So."), user("And?"), tools=TOOLS)
    assert "find" in shared(finder.find(longer, now=NOW), HEAD)
    assert renderer.renders == 3, "the prompt and two futures"


def test_only_conversations_that_may_call_tools_have_a_next_step() -> None:
    renderer = template("tools_first")
    finder = BoundaryFinder(renderer, TOKENIZER)
    finder.find(chat(user("Why?")), now=NOW)
    assert renderer.renders == 2
    renderer.renders = 0
    finder.find(chat(user("Why?"), says(None, calls="look"), result("so")), now=NOW)
    assert renderer.renders == 3


@pytest.mark.parametrize("name", ["tools_first", "system_in_user"])
def test_heads_that_differ_are_told_apart(name: str) -> None:
    """Also where one is the beginning of the other, or says the same in another order."""
    finder = BoundaryFinder(template(name), TOKENIZER)
    turned = tuple(dict(reversed(tool.items())) for tool in TOOLS)
    variants = [
        Conversation((system("Be brief."), user("Why?")), tools, thinking=thinking)
        for tools in ((), TOOLS[:1], TOOLS, TOOLS[::-1], turned)
        for thinking in (None, False)
    ] + [chat(system(text), user("Why?")) for text in ("Be", "Be\n\nbrief", "")]
    for conversation in variants * 2:
        alone = find(name, conversation)
        assert finder.find(conversation, now=NOW).boundaries == alone.boundaries


def test_few_heads_are_remembered() -> None:
    finder = BoundaryFinder(template("chatml"), TOKENIZER)
    for number in range(2 * HEADS_MAX):
        finder.find(chat(system(f"Be {number}."), user("Why?")), now=NOW)
    assert len(finder._heads) == HEADS_MAX

"""What users reported of other servers does not happen here: calls and thoughts that agents send
and get, in whatever way a template writes them.

Reports that are tested where their feature is name their issue there.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.pure.test_text_dialects_templates import SOURCES
from tests.server.asking import HELLO, chat
from tests.server.house import House, open_house
from tests.server.test_structured import FORMAT, PERSON
from tests.server.test_tools import FIND, LOOK, TOOLS, streamed

# gpt-oss' own refuses to be given both.
REFUSING = SOURCES["harmony"][0].replace(
    "{%- if m.role == 'assistant' %}",
    "{%- if m.role == 'assistant' %}{% if m.tool_calls and m.thinking and m.content %}"
    "{{ raise_exception('Cannot pass both content and thinking') }}{% endif %}",
)
TEMPLATES = {name: source for name, (source, _) in SOURCES.items()} | {"refusing": REFUSING}
RESULT = "18 degrees"


@pytest.fixture(params=TEMPLATES)
def any_house(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[House]:
    if request.param == "system_in_user" and "developer" not in request.function.__name__:
        pytest.skip("its turns alternate: it knows no results")
    with open_house(tmp_path, template=TEMPLATES[request.param], context_length=2048) as opened:
        yield opened


def calling(arguments: str = '{"at": "it"}', **fields: Any) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **fields}


def result(content: Any = RESULT) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "1", "name": "look", "content": content}


AFTER_CALLS: list[list[Any]] = [
    [calling(), result()],
    [calling(content=""), result([{"type": "text", "text": RESULT}])],
    [calling(content="I look.", reasoning_content="Where?"), result()],
    [calling(reasoning="Where?"), result()],
    [calling(content=[{"type": "text", "text": "I look."}], tool_calls=[]), result()],
]


def test_every_template_shows_what_came_of_a_call(any_house: House) -> None:
    """mlx-lm#185, vllm#13978, llama.cpp#19703: a crash; ninfer#56: refused; sglang#22595: empty."""
    for said in AFTER_CALLS:
        any_house.say("fine")
        chat(any_house, messages=[*HELLO, *said], tools=TOOLS)
        assert RESULT in any_house.prompt_text()


def test_a_call_that_went_wrong_spoils_no_conversation(any_house: House) -> None:
    """It stays in the history: every request after it would fail."""
    for arguments in ("", "{", '{"at": "rm -r a ', "null", "[1]", '"it"'):
        any_house.say("fine")
        chat(any_house, messages=[*HELLO, calling(arguments), result()], tools=TOOLS)
        assert RESULT in any_house.prompt_text()


def test_every_template_takes_a_developers_message(any_house: House) -> None:
    """cline#8714: refused."""
    any_house.say("fine")
    chat(any_house, messages=[{"role": "developer", "content": "be brief"}, *HELLO])
    assert "be brief" in any_house.prompt_text()


def test_the_calls_of_every_response_are_numbered_from_zero(house: House) -> None:
    """ollama#15457: always 0. Where the number is the process's, only the first response's are."""
    for _ in range(2):
        house.say(f"{LOOK}\n{FIND}")
        pieces = [
            piece
            for choice in streamed(house, tools=TOOLS)
            for piece in choice["delta"].get("tool_calls", [])
        ]
        assert {piece["index"]: piece["id"] for piece in pieces if "id" in piece}.keys() == {0, 1}


@pytest.mark.parametrize("thinks", [False, True])
def test_what_is_held_to_a_schema_is_content_whether_or_not_it_thinks(
    house: House, thinks: bool
) -> None:
    """vllm#19222: it came as the thought; vllm#18255: the thought was held to it."""
    house.begin("Hm.\n</think>\n\n" if thinks else "")
    fields = {"chat_template_kwargs": {"enable_thinking": thinks}, "temperature": 1, "seed": 2}
    (choice,) = chat(house, response_format=FORMAT, **fields)["choices"]
    jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
    assert choice["message"].get("reasoning_content") == ("Hm.\n" if thinks else None)


def test_a_turn_that_the_client_made_up_is_read_as_any_other(house: House) -> None:
    """As qwen-code's second request: an assistant's turn that no model wrote, and a result in
    parts.
    """
    house.say("fine")
    setup = [{"role": "user", "content": "The setup."}, {"role": "assistant", "content": "Got it"}]
    parts = [{"type": "text", "text": RESULT}]
    chat(house, messages=[*setup, *HELLO, calling(), result(parts)], tools=TOOLS)
    text = house.prompt_text()
    assert text.index("Got it") < text.index("hello") < text.index(RESULT)

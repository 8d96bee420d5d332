"""Unmodified client libraries against a real server."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest

from tests.server.encoder import MODEL, with_encoder
from tests.server.house import House, serving

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.slow

HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(house: House) -> Any:
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key="any", max_retries=0) as opened:
        yield opened


def test_openai_lists_and_retrieves_models(client: Any) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).context_length == model.max_model_len


def test_openai_chats_whole(house: House, client: Any) -> None:
    house.say("<think>hm</think>Hello.")
    reply = client.chat.completions.create(model="tiny:1m", messages=HELLO, logprobs=True)
    assert reply.choices[0].message.content == "Hello."
    assert reply.choices[0].message.reasoning_content == "hm"
    assert reply.choices[0].logprobs.content
    assert reply.usage.prompt_tokens_details.cached_tokens == 0


def test_openai_chats_in_a_stream(house: House, client: Any) -> None:
    house.say("Hello there.")
    with client.chat.completions.stream(
        model="tiny:1m", messages=HELLO, stream_options={"include_usage": True}
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == "Hello there."
    assert final.usage.total_tokens > 0


def test_openai_puts_streamed_calls_together(house: House, client: Any) -> None:
    names = ("look", "find")
    calls = [
        f'<tool_call>{{"name": "{name}", "arguments": {{"a": 1}}}}</tool_call>' for name in names
    ]
    house.say("So. " + "".join(calls))
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in names]
    with client.chat.completions.stream(model="tiny:1m", messages=HELLO, tools=tools) as stream:
        kinds = {event.type for event in stream}
        (choice,) = stream.get_final_completion().choices
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert choice.finish_reason == "tool_calls"
    assert [call.function.name for call in choice.message.tool_calls] == ["look", "find"]
    assert {call.function.arguments for call in choice.message.tool_calls} == {'{"a": 1}'}


class Person(pydantic.BaseModel):
    """What a model of random weights fills in as well as any."""

    name: Annotated[str, pydantic.Field(max_length=10)]
    age: Annotated[int, pydantic.Field(ge=0, le=150)]
    colour: Literal["red", "green"] | None


def test_openai_parses_what_was_held_to_a_model_of_pydantic(house: House, client: Any) -> None:
    asked = {"model": "tiny:1m", "messages": HELLO, "response_format": Person, "temperature": 1}
    for seed in range(4):
        reply = client.chat.completions.parse(**asked, seed=seed)
        assert isinstance(reply.choices[0].message.parsed, Person)
    with client.chat.completions.stream(**asked, seed=9) as stream:
        (choice,) = stream.get_final_completion().choices
    assert isinstance(choice.message.parsed, Person)


def test_openai_parses_the_arguments_of_a_call_that_must_come(house: House, client: Any) -> None:
    reply = client.chat.completions.parse(
        model="tiny:1m",
        messages=HELLO,
        tools=[openai.pydantic_function_tool(Person, name="keep")],
        tool_choice={"type": "function", "function": {"name": "keep"}},
        temperature=1,
        seed=2,
    )
    (call,) = reply.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Person)


def test_openai_completes(house: House, client: Any) -> None:
    house.say(" upon", " upon")
    whole = client.completions.create(model="tiny:1m", prompt="Once")
    assert whole.choices[0].text == " upon"
    chunks = client.completions.create(model="tiny:1m", prompt=[5, 6], stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == " upon"


@pytest.mark.parametrize(
    ("fields", "kind", "code"),
    [
        ({"model": "gpt-4"}, "NotFoundError", "model_not_found"),
        ({"temperature": 9}, "BadRequestError", None),
        ({"tool_choice": "sometimes"}, "BadRequestError", "unsupported_parameter"),
        (
            {"messages": [{"role": "user", "content": "word " * 600}]},
            "BadRequestError",
            "context_length_exceeded",
        ),
    ],
)
def test_openai_raises_by_status_with_the_code(
    client: Any, fields: dict[str, Any], kind: str, code: str | None
) -> None:
    with pytest.raises(getattr(openai, kind)) as refusal:
        client.chat.completions.create(**{"model": "tiny:1m", "messages": HELLO, **fields})
    assert refusal.value.code == code


def test_openai_raises_on_an_error_inside_a_stream(house: House, client: Any) -> None:
    from flm.errors import DeviceFailed

    def fail() -> None:
        raise DeviceFailed("the device is on fire", fix="put it out")

    house.during_passes(fail)
    stream = client.chat.completions.create(model="tiny:1m", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="on fire"):
        list(stream)


def test_openai_embeds(house: House, tmp_path: Path) -> None:
    """It asks for base64 unless told otherwise."""
    settings = with_encoder(tmp_path / "flm")
    with (
        serving(house.residence, settings) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        packed = client.embeddings.create(model=MODEL, input=["the sky is blue", "what"])
        (plain,) = client.embeddings.create(model=MODEL, input="what", encoding_format="float").data
    assert packed.data[1].embedding == pytest.approx(plain.embedding, abs=1e-6)
    assert packed.usage.total_tokens == 9

"""OpenAI's unmodified client library and its Responses, against a real server."""

from typing import Any

import pytest

from flm.errors import DeviceFailed
from tests.server.house import House

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.slow

LOOK: Any = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>{"name": "look", "arguments": {"at": "the sky"}}</tool_call>'
ASKED: Any = {"model": "tiny:1m", "input": "hello"}


@pytest.fixture
def client(house: House) -> Any:
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key="any", max_retries=0) as opened:
        yield opened


def test_it_gets_a_whole_response(house: House, client: Any) -> None:
    house.say("<think>hm</think>Hello.")
    response = client.responses.create(instructions="Be brief.", **ASKED)
    thought, _ = response.output
    assert response.output_text == "Hello."
    assert thought.content[0].text == "hm"
    assert response.status == "completed"
    assert response.usage.input_tokens_details.cached_tokens == 0


def test_it_puts_a_stream_together(house: House, client: Any) -> None:
    house.say(f"<think>hm</think>I look.\n{CALL}")
    with client.responses.stream(tools=[LOOK], reasoning={"summary": "auto"}, **ASKED) as stream:
        kinds = {event.type for event in stream}
        response = stream.get_final_response()
    assert {
        "response.created",
        "response.reasoning_summary_text.delta",
        "response.output_text.delta",
        "response.function_call_arguments.delta",
        "response.completed",
    } <= kinds
    thought, message, call = response.output
    assert thought.summary[0].text == "hm"
    assert message.content[0].text == "I look."
    assert (call.name, call.arguments) == ("look", '{"at": "the sky"}')


def test_it_goes_on_from_calls_and_thoughts(house: House, client: Any) -> None:
    house.say(f"<think>hm</think>I look.\n{CALL}", "Blue.")
    asked: Any = [{"role": "user", "content": "bird " * 100}]
    first = client.responses.create(model="tiny:1m", input=asked, tools=[LOOK])
    result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "blue"}
    history = [*asked, *first.output, result]
    second = client.responses.create(model="tiny:1m", input=history, tools=[LOOK])
    assert second.output_text == "Blue."
    assert second.usage.input_tokens_details.cached_tokens > 0


def test_it_raises_what_is_refused_and_what_fails_within_a_stream(
    house: House, client: Any
) -> None:
    with pytest.raises(openai.BadRequestError, match="whole conversation"):
        client.responses.create(previous_response_id="resp_1", **ASKED)

    def fail() -> None:
        raise DeviceFailed("the device is on fire", fix="put it out")

    house.during_passes(fail)
    with pytest.raises(openai.APIError, match="on fire"):
        list(client.responses.create(stream=True, **ASKED))

"""Ollama's own library, unmodified, against a real server."""

from pathlib import Path
from typing import Any

import pytest

from tests.server.encoder import with_encoder
from tests.server.house import House, serving

ollama = pytest.importorskip("ollama")
pytestmark = pytest.mark.slow

HELLO: Any = [{"role": "user", "content": "hello"}]
CALL = '<tool_call>{"name": "look", "arguments": {"at": "the sky"}}</tool_call>'


@pytest.fixture
def client(house: House) -> Any:
    with ollama.Client(host=house.url) as opened:
        yield opened


def look(at: str) -> str:
    """Look somewhere.

    Args:
      at: where
    """
    return f"{at} is blue"


def test_it_lists_and_shows_models(client: Any) -> None:
    (model,) = client.list().models
    (running,) = client.ps().models
    shown = client.show(model.model)
    assert model.model == running.model == "tiny:1m"
    assert shown.capabilities == ["completion", "tools"]
    assert shown.modelinfo["null.context_length"] == running.context_length


def test_it_chats_whole_and_in_a_stream(house: House, client: Any) -> None:
    house.say("<think>hm</think>Hello there.", "<think>hm</think>Hello there.")
    whole = client.chat("tiny:1m", HELLO, think=True, options={"temperature": 0, "num_ctx": 512})
    parts = list(client.chat("tiny:1m", HELLO, think=True, stream=True))
    assert whole.message.content == "".join(part.message.content or "" for part in parts)
    assert whole.message.thinking == "".join(part.message.thinking or "" for part in parts) == "hm"
    assert parts[-1].done_reason == whole.done_reason == "stop"
    assert parts[-1].eval_count == whole.eval_count > 0


def test_it_generates(house: House, client: Any) -> None:
    house.say("so", "so")
    assert client.generate("tiny:1m", "hello").response == "so"
    parts = list(client.generate("tiny:1m", "hello", stream=True))
    assert "".join(part.response for part in parts) == "so"
    assert client.generate("tiny:1m").done_reason == "load"


def test_a_tool_loop_goes_round(house: House, client: Any) -> None:
    house.say(CALL, "It is blue.")
    messages = [*HELLO]
    reply = client.chat("tiny:1m", messages, tools=[look])
    (call,) = reply.message.tool_calls
    messages += [reply.message]
    found = look(**call.function.arguments)
    messages += [{"role": "tool", "content": found, "tool_name": call.function.name}]
    assert client.chat("tiny:1m", messages, tools=[look]).message.content == "It is blue."
    assert "the sky is blue" in house.prompt_text()


def test_its_errors_carry_message_and_status(client: Any) -> None:
    with pytest.raises(ollama.ResponseError, match="not served here") as caught:
        client.chat("other", HELLO)
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="num_predict"):
        list(client.chat("tiny:1m", HELLO, options={"num_predict": 1.5}, stream=True))


def test_it_embeds(house: House, tmp_path: Path) -> None:
    settings = with_encoder(tmp_path / "flm")
    with serving(house.residence, settings) as url, ollama.Client(host=url) as client:
        both = client.embed("all-minilm", ["the sky is blue", "what"])
        old = client.embeddings("all-minilm", "what")
        with pytest.raises(ollama.ResponseError, match="makes no embeddings"):
            client.embed("tiny:1m", "what")
    assert both.prompt_eval_count == 9
    assert list(old.embedding) == pytest.approx(both.embeddings[1], abs=1e-6)

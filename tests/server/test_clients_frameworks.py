"""What agents are built with, unmodified, against a real server: chat, stream, tools, structure."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.server.house import House

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

HELLO: Any = [{"role": "user", "content": "hello"}]
LOOK: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}
CALL = '<tool_call>{"name": "look", "arguments": {"at": "the sky"}}</tool_call>'
BIRD = {"name": "heron", "legs": 2}


def made(tool: str) -> str:
    """The bird as the arguments of a call."""
    call = {"name": tool, "arguments": BIRD}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


def test_langchain(house: House) -> None:
    chats = pytest.importorskip("langchain_openai")
    for responses in (False, True):
        chat = chats.ChatOpenAI(
            base_url=f"{house.url}/v1",
            api_key="any",
            model="tiny:1m",
            max_retries=0,
            use_responses_api=responses,
            stream_usage=True,
        )
        house.say("Hello.", "Hello there.", f"I look.\n{CALL}", "Blue.", json.dumps(BIRD))
        assert chat.invoke("hello").text == "Hello."
        pieces = list(chat.stream("hello"))
        assert "".join(piece.text for piece in pieces) == "Hello there."
        assert any(piece.usage_metadata for piece in pieces)
        asked = chat.bind_tools([LOOK]).invoke("Where?")
        (call,) = asked.tool_calls
        assert (call["name"], call["args"]) == ("look", {"at": "the sky"})
        result = {"role": "tool", "tool_call_id": call["id"], "content": "blue"}
        assert chat.invoke([{"role": "user", "content": "Where?"}, asked, result]).text == "Blue."
        schema = {
            "title": "Bird",
            "type": "object",
            "properties": {"name": {"type": "string"}, "legs": {"type": "integer"}},
            "required": ["name", "legs"],
            "additionalProperties": False,
        }
        assert chat.with_structured_output(schema, method="json_schema").invoke("A bird") == BIRD


def test_pydantic_ai_runs_tools_and_gets_an_object(house: House) -> None:
    pytest.importorskip("pydantic_ai")
    from pydantic import BaseModel
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Bird(BaseModel):
        name: str
        legs: int

    model = OpenAIChatModel(
        "tiny:1m", provider=OpenAIProvider(base_url=f"{house.url}/v1", api_key="any")
    )
    agent = Agent(model, output_type=Bird)
    seen = []

    @agent.tool_plain
    def look(at: str) -> str:
        seen.append(at)
        return "a heron"

    house.say(CALL, made("final_result"))
    assert agent.run_sync("Which bird?").output == Bird(**BIRD)
    assert seen == ["the sky"]
    assert "a heron" in house.prompt_text()


def test_instructor_gets_an_object_by_a_forced_call_and_by_a_schema(house: House) -> None:
    instructor = pytest.importorskip("instructor")
    from openai import OpenAI
    from pydantic import BaseModel

    class Bird(BaseModel):
        name: str
        legs: int

    house.say(made("Bird"), json.dumps(BIRD))
    with OpenAI(base_url=f"{house.url}/v1", api_key="any", max_retries=0) as client:
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            asked = instructor.from_openai(client, mode=mode)
            bird = asked.chat.completions.create(
                model="tiny:1m", messages=HELLO, response_model=Bird, max_retries=0
            )
            assert bird.model_dump() == BIRD


def test_litellm_in_three_apis(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the network
    litellm = pytest.importorskip("litellm")
    asked: Any = {"messages": HELLO, "api_key": "any", "num_retries": 0}
    for model, base in (("openai/tiny:1m", f"{house.url}/v1"), ("anthropic/tiny:1m", house.url)):
        house.say("Hello.", "Hello there.", f"I look.\n{CALL}")
        whole = litellm.completion(model=model, api_base=base, **asked)
        assert whole.choices[0].message.content == "Hello."
        chunks = litellm.completion(model=model, api_base=base, stream=True, **asked)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == "Hello there."
        reply = litellm.completion(model=model, api_base=base, tools=[LOOK], **asked)
        (call,) = reply.choices[0].message.tool_calls
        assert json.loads(call.function.arguments) == {"at": "the sky"}
        assert reply.choices[0].finish_reason == "tool_calls"
    house.say("Hello.")
    response = litellm.responses(
        model="openai/tiny:1m", input="hello", api_base=f"{house.url}/v1", api_key="any"
    )
    assert response.output[-1].content[0].text == "Hello."


def test_llm_chats_streams_calls_and_fills_a_schema(house: House, tmp_path: Path) -> None:
    pytest.importorskip("llm")
    entry = {
        "model_id": "tiny",
        "model_name": "tiny:1m",
        "api_base": f"{house.url}/v1",
        "api_key_name": "flm",
        "supports_tools": True,
        "supports_schema": True,
    }
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([entry]))
    (tmp_path / "keys.json").write_text(json.dumps({"flm": "any"}))

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "llm", "-m", "tiny", "hello", *words]
        environ = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
        run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100)
        assert run.returncode == 0, run.stderr
        return run.stdout.strip()

    house.say("Hello.", "Hello there.", CALL, "Blue.", json.dumps(BIRD))
    assert run("--no-stream") == "Hello."
    assert run() == "Hello there."
    assert run("--functions", "def look(at: str) -> str: return at + ' is blue'") == "Blue."
    assert "the sky is blue" in house.prompt_text()
    assert json.loads(run("--schema", "name, legs int")) == BIRD

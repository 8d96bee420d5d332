"""Ollama's dialect: what its bodies mean, and its lines in their order."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from flm.errors import DeviceFailed
from flm.server.apis.ollama import OllamaChatBody
from flm.server.apis.ollama_replies import LineReplies
from flm.settings import Settings
from tests.server.asking import chat
from tests.server.house import SETTINGS, House, in_process

HELLO: Any = [{"role": "user", "content": "hello"}]
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "look", "arguments": {"at": "the sky"}}</tool_call>'
CHAT, GENERATE = "/api/chat", "/api/generate"
COUNTS = ("prompt_eval_count", "eval_count")
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def send(
    house: House,
    path: str,
    body: dict[str, Any] | None = None,
    *,
    method: str = "POST",
    settings: Settings = SETTINGS,
) -> httpx.Response:
    async def send() -> httpx.Response:
        async with in_process(house, settings) as client:
            return await client.request(method, path, json=body)

    return asyncio.run(send())


def post(house: House, path: str, **fields: Any) -> httpx.Response:
    asks = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    return send(house, path, {"model": "tiny:1m", **asks, **fields})


def ask(house: House, path: str = CHAT, **fields: Any) -> dict[str, Any]:
    response = post(house, path, stream=False, **fields)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def stream(house: House, path: str = CHAT, **fields: Any) -> list[dict[str, Any]]:
    """The lines of a reply."""
    response = post(house, path, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    *lines, last = map(json.loads, response.text.splitlines())
    assert not any(line["done"] for line in lines)
    assert last["done"]
    return [*lines, last]


def refused(house: House, status: int = 400, path: str = CHAT, **fields: Any) -> str:
    response = post(house, path, **fields)
    assert response.status_code == status, response.text
    assert response.json().keys() == {"error"}
    error: str = response.json()["error"]
    return error


def prompt_as_chat(house: House, messages: list[Any], **fields: Any) -> str:
    """What OpenAI's dialect makes of it."""
    house.say("so")
    chat(house, messages=messages, **fields)
    return house.prompt_text()


# --- replies ---


def test_a_whole_reply_says_what_it_cost(house: House) -> None:
    house.say("Hello.")
    reply = ask(house)
    assert (reply["model"], reply["done"], reply["done_reason"]) == ("tiny:1m", True, "stop")
    assert reply["message"] == {"role": "assistant", "content": "Hello."}
    assert reply["created_at"].endswith("Z")
    assert reply["prompt_eval_count"] == len(house.requests[0].prompt.tokens)
    assert reply["eval_count"] == len(house.tokenizer.encode("Hello.")) + 1
    assert all(isinstance(reply[name], int) for name in DURATIONS)
    spent = reply["prompt_eval_duration"] + reply["eval_duration"]
    assert 0 < spent <= reply["total_duration"]


@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_a_stream_says_what_a_whole_reply_says(house: House, path: str) -> None:
    house.say("<think>hm, so</think>The quick fox.", "<think>hm, so</think>The quick fox.")
    whole, lines = ask(house, path), stream(house, path)
    told = [line.get("message", line) for line in lines]
    key = "content" if path == CHAT else "response"
    whole_said = whole.get("message", whole)
    assert "".join(each[key] for each in told) == whole_said[key] == "The quick fox."
    assert "".join(each.get("thinking", "") for each in told) == whole_said["thinking"] == "hm, so"
    assert [lines[-1][name] for name in COUNTS] == [whole[name] for name in COUNTS]


def test_a_call_is_told_whole_and_with_its_arguments_as_an_object(house: House) -> None:
    house.say(f"So.\n{CALL}\n{CALL}", f"So.\n{CALL}\n{CALL}")
    whole, lines = ask(house, tools=[LOOK]), stream(house, tools=[LOOK])
    called = [call for line in lines for call in line["message"].get("tool_calls", [])]
    for calls in (whole["message"]["tool_calls"], called):
        functions = [call["function"] for call in calls]
        assert functions == [{"name": "look", "arguments": {"at": "the sky"}}] * 2
        assert len({call["id"] for call in calls}) == 2


def test_a_call_that_was_cut_is_not_told(house: House) -> None:
    house.say(CALL, CALL)
    tokens = len(house.tokenizer.encode(CALL.partition("the sky")[0]))
    cut = {"options": {"num_predict": tokens}, "tools": [LOOK]}
    whole, lines = ask(house, **cut), stream(house, **cut)
    assert whole["done_reason"] == lines[-1]["done_reason"] == "length"
    assert "tool_calls" not in whole["message"]
    assert not any("tool_calls" in line["message"] for line in lines)


def test_options_reach_the_sampler_and_the_end(house: House) -> None:
    house.say("The quick brown fox", "The quick brown fox")
    assert ask(house, options={"stop": ["zebra", "own f"]})["message"]["content"] == "The quick br"
    options = {
        "num_predict": 2,
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.25,
        "seed": 3,
        "repeat_penalty": 1.5,
        "repeat_last_n": 12,
        "num_ctx": 512,
        "num_gpu": 1,
    }
    cut = ask(house, options=options)
    assert (cut["eval_count"], cut["done_reason"]) == (2, "length")
    chosen = house.requests[-1].sampling
    assert (chosen.temperature, chosen.top_p, chosen.top_k) == (0.5, 0.5, 7)
    assert (chosen.min_p, chosen.seed) == (0.25, 3)
    assert (chosen.repetition_penalty, chosen.penalty_window) == (1.5, 12)


@pytest.mark.parametrize("limit", [None, -1, -2, 0])
def test_a_reply_without_a_limit_may_fill_the_window(house: House, limit: int | None) -> None:
    house.say("hi")
    ask(house, options={"num_predict": limit})
    (request,) = house.requests
    assert len(request.prompt.tokens) + request.max_tokens == 512


def test_a_wider_window_than_there_is_is_not_promised_in_silence(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    house.say("hi")
    ask(house, options={"num_ctx": 4096})
    assert "window of 512 tokens" in capsys.readouterr().err


def test_the_prompt_is_the_one_that_openais_dialect_makes(house: House) -> None:
    call = {"name": "look", "arguments": {"at": "x"}}
    history: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": call}]},
        {"role": "tool", "content": "blue", "tool_name": "look"},
    ]
    theirs: list[Any] = [dict(message) for message in history]
    theirs[2] = {**history[2], "tool_calls": [{"id": "a", "function": call}]}
    house.say("so")
    ask(house, messages=history, tools=[LOOK])
    assert house.prompt_text() == prompt_as_chat(house, theirs, tools=[LOOK])


def test_a_plain_prompt_is_a_chat_of_one_message(house: House) -> None:
    house.say("so")
    assert ask(house, GENERATE, prompt="hello", system="Be brief.")["response"] == "so"
    said = [{"role": "system", "content": "Be brief."}, *HELLO]
    assert house.prompt_text() == prompt_as_chat(house, said)


def test_a_raw_prompt_is_all_there_is(house: House) -> None:
    house.say("so")
    ask(house, GENERATE, prompt="The sky is", raw=True)
    assert house.prompt_text() == "The sky is"


@pytest.mark.parametrize(("think", "opened"), [(True, True), (False, False), ("high", True)])
def test_thoughts_are_switched_by_think(house: House, think: object, opened: bool) -> None:
    house.say("so")
    ask(house, think=think)
    assert house.prompt_text().rstrip().endswith("<think>") is opened


def test_what_was_kept_is_found_from_either_dialect(house: House) -> None:
    long = [{"role": "user", "content": "word " * 100}]
    house.say("so", "so")
    chat(house, messages=long)
    reply = ask(house, messages=long)
    assert reply["cached_tokens"] == reply["prompt_eval_count"]


@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_nothing_asked_is_answered_at_once(house: House, path: str) -> None:
    """What `ollama run` sends first, and apps to have a model loaded."""
    reply = send(house, path, {"model": "tiny:1m"}).json()
    assert (reply["done"], reply["done_reason"]) == (True, "load")
    assert not house.requests


@pytest.mark.parametrize(("keep", "reason"), [(0, "unload"), ("5m", "load"), (-1, "load")])
def test_a_model_that_is_sent_away_is_said_to_go(house: House, keep: object, reason: str) -> None:
    body = OllamaChatBody.model_validate({"model": "tiny:1m", "keep_alive": keep})
    assert LineReplies(body, house.resident, chat=True).loaded()["done_reason"] == reason


# --- refusals ---


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"format": "yaml"}, "format"),
        ({"format": {"not": {}}}, "format"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"temperature": "warm"}}, "options.temperature"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"think": "sometimes"}, "think"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    house: House, fields: dict[str, Any], named: str
) -> None:
    assert named in refused(house, **fields)


def test_fields_without_effect_pass(house: House) -> None:
    house.say("so")
    ask(house, format="", keep_alive="5m", options={"mirostat": 0, "num_thread": 8}, logprobs=False)


def test_errors_are_texts_with_their_status(house: House) -> None:
    assert "not served here" in refused(house, 404, model="other")
    assert "leads nowhere" in send(house, "/api/nowhere", {}).json()["error"]
    assert send(house, CHAT, method="GET").json().keys() == {"error"}


def test_a_failure_in_a_stream_is_its_last_line(house: House) -> None:
    house.say("one two three four", end=False)
    passes = iter(range(100))

    def fail() -> None:
        if next(passes) == 3:
            raise DeviceFailed("it is gone", fix="none")

    house.during_passes(fail)
    response = post(house, CHAT)
    last = json.loads(response.text.splitlines()[-1])
    assert last == {"error": "it is gone. Fix: none."}


# --- models ---


def test_a_model_is_told_as_it_is_served(house: House) -> None:
    (tag,) = send(house, "/api/tags", method="GET").json()["models"]
    (running,) = send(house, "/api/ps", method="GET").json()["models"]
    (known,) = send(house, "/v1/models", method="GET").json()["data"]
    assert tag["name"] == tag["model"] == running["name"] == known["id"]
    assert tag["digest"] == running["digest"] != ""
    assert running["context_length"] == known["context_length"]
    assert send(house, "/api/version", method="GET").json().keys() == {"version"}


@pytest.mark.parametrize("field", ["model", "name"])
def test_a_model_shows_its_window_and_what_it_can_do(house: House, field: str) -> None:
    shown = send(house, "/api/show", {field: "tiny:1m"}).json()
    assert "num_ctx 512" in shown["parameters"].splitlines()
    assert "temperature 0.0" in shown["parameters"].splitlines()
    assert shown["model_info"]["null.context_length"] == 512
    assert shown["capabilities"] == ["completion", "tools"]
    assert "<|im_start|>" in shown["template"]


def test_an_agent_that_takes_us_for_ollama_learns_the_true_window(house: House) -> None:
    """Hermes' probes, in their order: LM Studio's list must not be there, the window comes from
    `num_ctx`, and is sent back with every request as an option of OpenAI's body.
    """
    assert send(house, "/api/v1/models", method="GET").status_code == 404
    (tag,) = send(house, "/api/tags", method="GET").json()["models"]
    shown = send(house, "/api/show", {"name": tag["name"]}).json()
    lines = dict(line.split(" ", 1) for line in shown["parameters"].splitlines())
    (known,) = send(house, "/v1/models", method="GET").json()["data"]
    assert int(lines["num_ctx"]) == known["context_length"]
    assert "vision" not in shown["capabilities"]
    house.say("so")
    chat(house, options={"num_ctx": int(lines["num_ctx"])})


@pytest.mark.parametrize("path", ["/api/tags", "/api/show", "/api/version", CHAT, GENERATE])
def test_without_ollamas_routes_nobody_takes_us_for_it(house: House, path: str) -> None:
    off = replace(SETTINGS, ollama=False)
    assert send(house, path, {}, settings=off).status_code == 404

"""What cannot be answered is refused: the right status, the field by name, and what to do."""

import asyncio
import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from flm.server.apis.openai import ChatBody
from tests.server.asking import HELLO, chat, post, refused
from tests.server.house import CONTEXT_LENGTH, SETTINGS, House, in_process, open_house


def test_a_prompt_past_the_window_is_refused_in_words_that_clients_parse(house: House) -> None:
    error = refused(house, messages=[{"role": "user", "content": "word " * 600}])
    count = error["n_prompt_tokens"]
    assert error["code"] == "context_length_exceeded"
    assert error["n_ctx"] == CONTEXT_LENGTH
    assert error["message"] == (
        f"This model's maximum context length is {CONTEXT_LENGTH} tokens. "
        f"However, your prompt contains {count} input tokens."
    )
    assert not house.requests, "refused before it was queued"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tool_choice", "sometimes"),
        ("tool_choice", {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}),
        ("response_format", {"type": "regex"}),
        ("response_format", {"type": "json_object", "schema": {"not": {}}}),
        ("grammar", "root ::= 'a'"),
        ("functions", [{"name": "look"}]),
    ],
)
def test_what_we_cannot_do_is_refused_by_name(house: House, field: str, value: Any) -> None:
    error = refused(house, **{field: value})
    assert error["code"] == "unsupported_parameter"
    assert error["param"] == field
    assert error["fix"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("reasoning_effort", "huge", "not known"),
        ("temperature", 2.1, "less than or equal to 2"),
        ("temperature", -1, "greater than or equal to 0"),
        ("temperature", "hot", "valid number"),
        ("temperature", True, "valid number"),
        ("top_p", 1.5, "less than or equal to 1"),
        ("min_p", -0.5, "greater than or equal to 0"),
        ("top_k", 1.5, "valid integer"),
        ("presence_penalty", 3, "less than or equal to 2"),
        ("frequency_penalty", -3, "greater than or equal to -2"),
        ("repetition_penalty", 0, "greater than or equal to 0.01"),
        ("max_tokens", 0, "greater than or equal to 1"),
        ("n", 0, "greater than or equal to 1"),
        ("n", 1000, "less than or equal to 16"),
        ("seed", "x", "valid integer"),
        ("top_logprobs", 21, "less than or equal to 20"),
        ("stop", [1], "valid string"),
        ("stop", ["x" * 300], "256 characters"),
        ("logit_bias", {"a": 1}, "token id"),
        *(("logit_bias", {odd: 1}, "token id") for odd in ("4_2", " 42", "4.0", "\u0664", "")),
        ("logit_bias", {"999999": 1}, "token"),
        ("stream", "yes", "valid boolean"),
        ("messages", [], "at least 1"),
        ("messages", "hello", "valid list"),
        ("messages", [{"role": "robot", "content": "a"}], "'system'"),
        ("messages", [{"content": "a"}], "missing"),
        ("messages", [{"role": "user", "content": 5}], "valid string or"),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}], "not a text part"),
        ("tools", [{"type": "function", "function": {}}], "name"),
        ("model", "", "model"),
    ],
)
def test_a_bad_value_is_refused_by_name(house: House, field: str, value: Any, words: str) -> None:
    error = refused(house, **{field: value})
    assert error["param"].startswith(field)
    assert words in error["message"]
    assert field in error["message"]
    assert error["fix"] in error["message"]


def test_unrelated_refusals_do_not_read_as_a_full_window(house: House) -> None:
    """Agents answer these words by compressing the conversation, again and again."""
    for fields in ({"temperature": 9}, {"n": 99}, {"stop": ["x" * 300]}, {"messages": []}):
        message = refused(house, **fields)["message"].lower()
        for words in ("max_tokens", "token limit", "exceeds the limit", "context length"):
            assert words not in message


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_a_missing_field_is_named(house: House, missing: str) -> None:
    async def send() -> httpx.Response:
        async with in_process(house) as client:
            body: dict[str, Any] = {"model": "tiny:1m", "messages": HELLO}
            del body[missing]
            return await client.post("/v1/chat/completions", json=body)

    response = asyncio.run(send())
    assert response.status_code == 400
    assert response.json()["error"]["param"] == missing


def test_an_unknown_model_is_404_and_says_what_is_served(house: House) -> None:
    response = post(house, model="gpt-4")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert "tiny:1m" in response.json()["error"]["message"]


def test_a_full_queue_is_429_with_a_time_to_wait(tmp_path: Path) -> None:
    settings = replace(SETTINGS, lanes=1, queue_max=1)
    with open_house(tmp_path, settings) as house:

        async def send() -> list[httpx.Response]:
            async with in_process(house, settings) as client:
                body = {"model": "tiny:1m", "messages": HELLO}
                posts = (client.post("/v1/chat/completions", json=body) for _ in range(4))
                return await asyncio.gather(*posts)

        house.say(*["x"] * 4, end=False)
        responses = asyncio.run(send())
    refusals = [response for response in responses if response.status_code == 429]
    assert len(refusals) == 2
    assert all(int(response.headers["retry-after"]) > 0 for response in refusals)
    assert refusals[0].json()["error"]["code"] == "queue_full"


@pytest.mark.parametrize("stream", [False, True])
def test_a_mistake_of_ours_is_told_without_its_secrets_and_logged_with_them(
    house: House, stream: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def stumble() -> None:
        raise ZeroDivisionError("secret")

    house.during_passes(stumble)
    body = {"model": "tiny:1m", "messages": HELLO, "stream": stream}
    response = httpx.post(house.url + "/v1/chat/completions", json=body)
    assert response.status_code == (200 if stream else 500)
    assert '"type":"server_error"' in response.text
    assert "secret" not in response.text
    assert "ZeroDivisionError: secret" in capsys.readouterr().err
    house.during_passes(lambda: None)
    house.say("still here")
    assert post(house).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [1] * 50_000},
        {"messages": [{"role": "user", "content": [1] * 50_000}]},
        {"messages": HELLO, "stop": [1] * 50_000},
        {"messages": HELLO, "tools": [1] * 50_000},
        {"messages": HELLO, "logit_bias": {str(token): 101 for token in range(300_000)}},
    ],
)
def test_of_many_wrong_items_only_the_first_is_looked_at(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as wrong:
        ChatBody.model_validate({"model": "tiny:1m", **fields})
    assert wrong.value.error_count() < 10


def test_a_packed_body_is_refused_with_the_word_for_it(house: House) -> None:
    packed = gzip.compress(b'{"model": "tiny:1m"}')
    response = httpx.post(
        house.url + "/v1/chat/completions", content=packed, headers={"Content-Encoding": "gzip"}
    )
    assert response.status_code == 400
    assert "Content-Encoding" in response.json()["error"]["fix"]


def test_a_hundred_thousand_unknown_tools_are_one_line_in_the_log(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    house.say("fine")
    chat(house, tools=[{"type": "web_search"}] * 1000)
    said = capsys.readouterr()
    assert (said.out + said.err).count("skipped") == 1


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/v1/audio/transcriptions", "flm runs no speech model yet"),
        ("/v1/audio/speech", "flm runs no speech model yet"),
        ("/v1/images/generations", "flm draws no images"),
    ],
)
def test_what_flm_lacks_is_said_at_its_address(house: House, path: str, why: str) -> None:
    async def send() -> httpx.Response:
        async with in_process(house) as client:
            files = {"file": ("a.wav", b"RIFF", "audio/wav")}
            return await client.post(path, files=files, data={"model": "whisper-1"})

    response = asyncio.run(send())
    assert response.status_code == 404
    error = response.json()["error"]
    assert f"POST {path} leads nowhere: {why}" in error["message"]
    assert error["fix"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AAAA"}},
    ],
)
def test_a_sound_is_refused_by_its_place(house: House, part: dict[str, Any]) -> None:
    error = refused(house, messages=[{"role": "user", "content": [part]}])
    assert error["message"].startswith("messages[0].content[0] is a sound, and tiny:1m reads text")
    assert not house.requests

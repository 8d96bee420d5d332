"""/v1/completions: text or token ids in, one or several; the small routes around it."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from flm import __version__
from flm.server.app import create_app
from flm.server.residence.residence import Residence
from tests.server.house import CONTEXT_LENGTH, SETTINGS, House, in_process, open_house


def ask(house: House, method: str, path: str, **options: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        async with in_process(house) as client:
            return await client.request(method, path, **options)

    return asyncio.run(send())


def complete(house: House, **fields: Any) -> dict[str, Any]:
    response = ask(house, "POST", "/v1/completions", json={"model": "tiny:1m", **fields})
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def test_a_text_is_gone_on_from_without_a_template(house: House) -> None:
    house.say(" upon a time <think>plain</think>")
    reply = complete(house, prompt="Once")
    assert reply["object"] == "text_completion"
    assert reply["choices"][0] == {
        "index": 0,
        "text": " upon a time <think>plain</think>",
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert house.prompt_text() == "Once"
    assert reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_token_ids_are_taken_as_they_are(house: House) -> None:
    house.say("fine")
    complete(house, prompt=[5, 6, 7])
    assert house.requests[0].prompt.tokens == (5, 6, 7)


@pytest.mark.parametrize("prompts", [["one", "two"], [[5, 6], [7]]])
def test_each_prompt_of_several_has_its_choices(house: House, prompts: list[Any]) -> None:
    house.say("a", "b", "c", "d")
    reply = complete(house, prompt=prompts, n=2)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    lengths = {request.prompt.tokens for request in house.requests}
    assert reply["usage"]["prompt_tokens"] == sum(map(len, lengths))


def test_logprobs_have_the_old_shape(house: House) -> None:
    house.say("Hi")
    logprobs = complete(house, prompt="Once", logprobs=2)["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == "Hi"
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"])
    assert all(len(top) == 2 for top in logprobs["top_logprobs"])


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ([[]], "prompt"),
        ([-1], "prompt"),
        ([10**9], "prompt"),
        ([2**31], "prompt"),
        ([10**30], "prompt"),
        ([1.5], "prompt"),
        ({"a": 1}, "prompt"),
        (["a"] * 17, "prompt"),
        ("word " * 600, "messages"),
    ],
)
def test_a_prompt_that_cannot_be_run_is_refused(house: House, prompt: Any, param: str) -> None:
    body = {"model": "tiny:1m", "prompt": prompt}
    response = ask(house, "POST", "/v1/completions", json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param)


@pytest.mark.parametrize(("field", "value"), [("echo", True), ("suffix", "x"), ("best_of", 3)])
def test_fields_with_an_effect_we_lack_are_refused(house: House, field: str, value: Any) -> None:
    body = {"model": "tiny:1m", "prompt": "a", field: value}
    response = ask(house, "POST", "/v1/completions", json=body)
    assert response.json()["error"]["param"] == field


def test_models_are_listed_with_their_true_window(house: House) -> None:
    listed = ask(house, "GET", "/v1/models?a=b").json()
    assert listed["object"] == "list"
    (entry,) = listed["data"]
    assert entry["id"] == "tiny:1m"
    assert entry["context_length"] == entry["max_model_len"] == CONTEXT_LENGTH
    assert ask(house, "GET", "/v1/models/tiny:1m").json() == entry
    assert ask(house, "GET", "/v1/models/other").status_code == 404


def test_what_lemonade_polls_is_there(house: House) -> None:
    (entry,) = ask(house, "GET", "/api/tags").json()["models"]
    assert entry["name"] == entry["model"] == "tiny:1m"
    assert entry["details"]["family"] == "null"
    for path in ("/version", "/v1/version", "/api/version"):
        assert ask(house, "GET", path).json() == {"version": __version__}


def test_the_front_door_and_health_answer(house: House) -> None:
    assert "flm" in ask(house, "GET", "/").json()["message"]
    assert ask(house, "HEAD", "/").status_code == 200
    assert ask(house, "HEAD", "/").content == b""
    assert ask(house, "GET", "/health").json()["status"] == "ok"


@pytest.mark.parametrize("path", ["/nowhere", "/v1"])
def test_an_unknown_path_is_a_404_object(house: House, path: str) -> None:
    response = ask(house, "GET", path)
    assert response.status_code == 404
    assert "/v1/chat/completions" in response.json()["error"]["fix"]


def test_below_ollamas_root_it_is_a_404_with_a_text(house: House) -> None:
    """Agents take us for LM Studio if this one answers."""
    response = ask(house, "GET", "/api/v1/models")
    assert response.status_code == 404
    assert "/v1/chat/completions" in response.json()["error"]


def test_a_wrong_method_is_a_405_object(house: House) -> None:
    response = ask(house, "GET", "/v1/chat/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.json()["error"]["code"] == "method_not_allowed"
    assert response.json()["error"]["fix"] == "use POST"


def test_all_that_needs_a_model_is_503_until_it_is_there() -> None:
    async def visit() -> list[httpx.Response]:
        transport = httpx.ASGITransport(create_app(SETTINGS, Residence()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            chat = client.post("/v1/chat/completions", content=b"not even JSON")
            paths = ("/health", "/v1/models", "/api/tags", "/version", "/")
            return [await chat, *[await client.get(path) for path in paths]]

    *waiting, version, door = asyncio.run(visit())
    for response in waiting:
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert "loading" in str(response.json()["error"])
    assert version.status_code == door.status_code == 200


def test_the_bodies_are_documented(house: House) -> None:
    document = ask(house, "GET", "/openapi.json").json()
    schemas = document["components"]["schemas"]
    bodies = {"ChatBody", "CompletionBody", "MessageBody", "MessagesBody", "CountBody"}
    assert bodies <= schemas.keys()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"]["$ref"].endswith("/ChatBody")


def test_more_replies_than_the_queue_holds_take_turns(tmp_path: Path) -> None:
    with open_house(tmp_path, replace(SETTINGS, lanes=1, queue_max=0)) as house:
        house.say(*map(str, range(6)))
        reply = complete(house, prompt=["one", "two"], n=3)
    assert sorted(choice["text"] for choice in reply["choices"]) == list("012345")


def test_every_route_stands_in_the_docs(house: House) -> None:
    page = (Path(__file__).parents[2] / "docs" / "clients.md").read_text()
    routes = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    written = {path for cell in routes for path in re.findall(r"`(?:[A-Z]+ )?(/[^`]*)`", cell)}
    paths = ask(house, "GET", "/openapi.json").json()["paths"].keys()
    assert written == paths | {"/openapi.json"}

"""Embeddings, in OpenAI's form and in Ollama's, of an encoder that is on the shelf."""

import asyncio
import base64
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from flm.engine.residency import planned
from flm.errors import BadRequest, PassCancelled
from flm.hub.reference import resolve
from flm.hub.shelf import Shelf
from flm.models.compile import compile_model
from flm.server.app import create_app
from flm.server.routes import embeddings as module
from flm.settings import Settings
from tests.models.tiny_bert import LENGTH_MAX, reference, write_bert
from tests.server.encoder import MODEL, with_encoder
from tests.server.house import House, in_process

SKY = [2, 4, 6, 7, 8, 3]  # [CLS] the sky is blue [SEP]


@pytest.fixture
def shelf(tmp_path: Path) -> Settings:
    return with_encoder(tmp_path / "flm")


def post(house: House, settings: Settings, path: str, *bodies: dict[str, Any]) -> httpx.Response:
    """The last of several answers."""

    async def send() -> httpx.Response:
        async with in_process(house, settings) as client:
            answers = [await client.post(path, json=body) for body in bodies]
            return answers[-1]

    return asyncio.run(send())


def ask(house: House, settings: Settings, given: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "input": given, **fields}
    response = post(house, settings, "/v1/embeddings", body)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def refused(house: House, settings: Settings, status: int = 400, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "input": "the sky", **fields}
    response = post(house, settings, "/v1/embeddings", body)
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def test_each_text_has_its_vector_in_order(house: House, shelf: Settings, tmp_path: Path) -> None:
    reply = ask(house, shelf, ["the sky is blue", "what"])
    assert (reply["object"], reply["model"]) == ("list", MODEL)
    assert reply["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    first, second = reply["data"]
    assert (first["object"], first["index"], second["index"]) == ("embedding", 0, 1)
    tensors = write_bert(tmp_path / "again")
    np.testing.assert_allclose(first["embedding"], reference(tensors, SKY), atol=1e-6)


@pytest.mark.parametrize("given", ["the sky is blue", ["the sky is blue"], SKY, [SKY]])
def test_texts_and_token_ids_mean_the_same(house: House, shelf: Settings, given: Any) -> None:
    expected = ask(house, shelf, ["what", "the sky is blue"])["data"][1]["embedding"]
    (only,) = ask(house, shelf, given)["data"]
    np.testing.assert_allclose(only["embedding"], expected, atol=1e-6)


def test_base64_is_the_same_floats(house: House, shelf: Settings) -> None:
    (plain,) = ask(house, shelf, "what", encoding_format="float")["data"]
    (packed,) = ask(house, shelf, "what", encoding_format="base64")["data"]
    floats = np.frombuffer(base64.b64decode(packed["embedding"]), "<f4")
    assert floats.tolist() == plain["embedding"]


def test_ollamas_routes_give_the_same(house: House, shelf: Settings) -> None:
    (expected,) = ask(house, shelf, "what")["data"]
    body = {"model": "all-minilm", "input": ["what", "the sky"]}
    new = post(house, shelf, "/api/embed", body).json()
    old = post(house, shelf, "/api/embeddings", {"model": "all-minilm", "prompt": "what"}).json()
    assert len(new["embeddings"]) == 2
    assert new["prompt_eval_count"] == 7
    assert 0 < new["load_duration"] < new["total_duration"]
    np.testing.assert_allclose(new["embeddings"][0], expected["embedding"], atol=1e-6)
    np.testing.assert_allclose(old["embedding"], expected["embedding"], atol=1e-6)


def test_a_class_behind_the_name_changes_nothing(house: House, shelf: Settings) -> None:
    body = {"model": f"{MODEL}@agent", "input": "what"}
    reply = post(house, shelf, "/v1/embeddings", body).json()
    assert reply["data"] == ask(house, shelf, "what")["data"]


def test_a_long_text_is_refused_or_cut_as_asked(house: House, shelf: Settings) -> None:
    long = "blue " * 60
    error = refused(house, shelf, input=["what", long])
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")
    assert error["n_ctx"] == LENGTH_MAX
    assert ask(house, shelf, long, truncate=True)["usage"]["total_tokens"] == LENGTH_MAX
    body = {"model": MODEL, "input": long}
    assert post(house, shelf, "/api/embed", body).json()["prompt_eval_count"] == LENGTH_MAX
    assert post(house, shelf, "/api/embed", body | {"truncate": False}).status_code == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input[0]"),
        ({"input": ["what", ""]}, "input[1]"),
        ({"input": [2, 99, 3]}, "input[0]"),
        ({"input": [[2, 3], [-1]]}, "input[1]"),
        ({"input": 5}, "input"),
        ({"dimensions": 8}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    house: House, shelf: Settings, fields: dict[str, Any], param: str
) -> None:
    assert refused(house, shelf, **fields)["param"] == param


def test_all_its_dimensions_may_be_asked_for(house: House, shelf: Settings) -> None:
    (only,) = ask(house, shelf, "what", dimensions=32)["data"]
    assert len(only["embedding"]) == 32


def test_too_much_at_once_is_refused(
    house: House, shelf: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "1 to 2,048" in refused(house, shelf, input=["what"] * 2049)["message"]
    assert refused(house, shelf, input=["what", "a" * (2**20 + 1)])["param"] == "input[1]"
    monkeypatch.setattr(module, "TOKENS_MAX", 8)
    assert "9 tokens" in refused(house, shelf, input=["what"] * 3)["message"]


def test_a_model_that_writes_is_told_apart(house: House, shelf: Settings) -> None:
    error = refused(house, shelf, model="tiny:1m")
    assert "makes no embeddings" in error["message"]
    assert MODEL in error["fix"]
    assert refused(house, shelf, 404, model="nobody")["code"] == "model_not_found"


def test_nothing_is_fetched_inside_a_request(house: House, shelf: Settings) -> None:
    shutil.rmtree(shelf.model_path)
    error = refused(house, shelf, 404)
    assert (error["code"], error["fix"]) == ("model_not_found", f"flm pull {MODEL}")
    assert not shelf.model_path.exists()


def test_a_chat_with_an_encoder_is_refused(house: House, shelf: Settings, tmp_path: Path) -> None:
    wanted = Shelf(shelf.model_path).folder(MODEL)
    bundle = compile_model(wanted / "source", tmp_path / "bundle")
    with pytest.raises(BadRequest, match="writes no replies") as caught:
        planned(bundle, resolve(MODEL).card, shelf)
    assert caught.value.param == "model"


def test_it_is_loaded_once(
    house: House, shelf: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {"model": MODEL, "input": "what"}
    post(house, shelf, "/v1/embeddings", body, body, body)
    assert capsys.readouterr().out.count(f"Memory: {MODEL}") == 1


def test_a_client_that_left_is_not_worked_for(
    house: House, shelf: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps({"model": MODEL, "input": "what"}).encode()
    messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
    sent: list[Any] = []
    embedded = module._embedded

    def once_it_left(*given: Any) -> Any:
        while given[-1]():
            continue
        return embedded(*given)

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    async def scene() -> None:
        path = "/v1/embeddings"
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
        scope |= {"headers": [], "query_string": b""}
        await create_app(shelf, house.residence)(scope, receive, send)

    monkeypatch.setattr(module, "_embedded", once_it_left)
    asyncio.run(scene())
    assert sent[0]["status"] == 499


def test_a_request_that_is_cut_off_is_not_worked_for(
    house: House, shelf: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a server that is told to stop would wait for it to the end."""
    begun, given_up = threading.Event(), threading.Event()

    def until_unwanted(*given: Any) -> Any:
        begun.set()
        while given[-1]():
            continue
        given_up.set()
        raise PassCancelled("nobody waits", fix="none needed")

    async def scene() -> None:
        async with in_process(house, shelf) as client:
            body = {"model": MODEL, "input": "what"}
            asking = asyncio.create_task(client.post("/v1/embeddings", json=body))
            await asyncio.to_thread(begun.wait)
            asking.cancel()
            await asyncio.wait([asking])

    monkeypatch.setattr(module, "_embedded", until_unwanted)
    asyncio.run(scene())  # which joins its threads
    assert given_up.is_set()

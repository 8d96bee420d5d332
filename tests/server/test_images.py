"""Images in every API's own form: looked at, and refused where the model reads text only."""

import asyncio
import base64
from dataclasses import replace
from io import BytesIO
from typing import Any

import httpx
import pytest
from PIL import Image

from flm.settings import Settings
from tests.server.house import SETTINGS, House, in_process


def encoded(form: str = "PNG", size: tuple[int, int] = (3, 2)) -> str:
    out = BytesIO()
    Image.new("RGB", size, (1, 2, 3)).save(out, form)
    return base64.b64encode(out.getvalue()).decode()


def user(*parts: Any) -> list[Any]:
    return [{"role": "user", "content": "so"}, {"role": "user", "content": list(parts)}]


def openai(image: str) -> tuple[str, dict[str, Any], str]:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
    return "/v1/chat/completions", {"messages": user("what?", part)}, "messages[1].content[1]"


def openai_short(image: str) -> tuple[str, dict[str, Any], str]:
    part = {"type": "image_url", "image_url": f"data:image/png;base64,{image}"}
    return "/v1/chat/completions", {"messages": user(part)}, "messages[1].content[0]"


def responses(image: str) -> tuple[str, dict[str, Any], str]:
    part = {"type": "input_image", "image_url": f"data:image/png;base64,{image}"}
    return "/v1/responses", {"input": [{"role": "user", "content": [part]}]}, "input[0].content[0]"


def anthropic(image: str) -> tuple[str, dict[str, Any], str]:
    source = {"type": "base64", "media_type": "image/png", "data": image}
    messages = user({"type": "image", "source": source})
    return "/v1/messages", {"messages": messages, "max_tokens": 9}, "messages[1].content[0]"


def ollama_chat(image: str) -> tuple[str, dict[str, Any], str]:
    messages = [{"role": "user", "content": "what?", "images": [image]}]
    return "/api/chat", {"messages": messages}, "messages[0].images[0]"


def ollama_prompt(image: str) -> tuple[str, dict[str, Any], str]:
    return "/api/generate", {"prompt": "what?", "images": [image]}, "images[0]"


FORMS = [openai, openai_short, responses, anthropic, ollama_chat, ollama_prompt]


def refused(house: House, path: str, body: Any, settings: Settings = SETTINGS) -> str:
    async def send() -> httpx.Response:
        async with in_process(house, settings) as client:
            return await client.post(path, json={"model": "tiny:1m", **body})

    response = asyncio.run(send())
    assert response.status_code == 400, response.text
    assert not house.requests
    error = response.json()["error"]
    return error if isinstance(error, str) else error["message"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_model_that_reads_text_says_so(house: House, form: Any, kind: str) -> None:
    path, body, place = form(encoded(kind))
    told = refused(house, path, body)
    assert f"{place} is an image of 3 by 2 pixels" in told
    assert "tiny:1m reads text only" in told
    assert "take a model that sees" in told


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("image", ["", "AAAA", "?!", encoded()[:-40]])
def test_what_is_no_image_is_told_with_its_place(house: House, form: Any, image: str) -> None:
    path, body, place = form(image)
    told = refused(house, path, body)
    assert f"{place}, an image, " in told


@pytest.mark.parametrize("form", FORMS)
def test_an_image_beyond_the_limits_is_refused(house: House, form: Any) -> None:
    path, body, place = form(encoded(size=(30, 20)))
    told = refused(house, path, body, replace(SETTINGS, image_pixels_max=599))
    assert f"{place}, an image, has 30 by 20 pixels" in told


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/a.png"}},
        {"type": "input_image", "file_id": "file-1"},
        {"type": "image_url", "image_url": {"url": 5}},
    ],
)
def test_nothing_is_fetched_for_an_image(house: House, part: Any) -> None:
    told = refused(house, "/v1/chat/completions", {"messages": user(part)})
    assert "messages[1].content[0]" in told

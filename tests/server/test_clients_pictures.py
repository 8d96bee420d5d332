"""A picture by the unmodified clients of each API: the model is shown the same by all."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flm.engine.residency import Resident
from flm.server.residence.residence import Residence
from tests.models.seen import pictures
from tests.server.house import serving
from tests.server.seeing import SEES, opened, seeing_bundle, sent

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

TEXT = "what is in this picture, and what is it for? say it in a few words please"
DATA = sent(pictures()[0], "JPEG")
URL = f"data:image/jpeg;base64,{DATA}"
CHAT: Any = [
    {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": URL}},
            {"type": "text", "text": TEXT},
        ],
    }
]


@pytest.fixture(scope="module")
def resident(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resident]:
    with opened(seeing_bundle(tmp_path_factory.mktemp("sees"))) as found:
        yield found


@pytest.fixture(scope="module")
def url(resident: Resident) -> Iterator[str]:
    residence = Residence()
    residence.settle(resident)
    with serving(residence, SEES) as found:
        yield found


@pytest.fixture(scope="module")
def length(url: str) -> int:
    """Of the prompt, in tokens, which is kept from here on."""
    body = {"model": "tiny:1m", "messages": CHAT, "max_tokens": 4}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
    found = reply["usage"]["prompt_tokens"]
    assert isinstance(found, int)
    return found


def test_openai(url: str, length: int) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        chat = client.chat.completions.create(model="tiny:1m", messages=CHAT, max_tokens=4)
        assert chat.usage.prompt_tokens_details.cached_tokens == length
        content: Any = [
            {"type": "input_image", "image_url": URL, "detail": "auto"},
            {"type": "input_text", "text": TEXT},
        ]
        response = client.responses.create(
            model="tiny:1m", input=[{"role": "user", "content": content}], max_output_tokens=4
        )
        assert response.usage.input_tokens_details.cached_tokens == length


def test_anthropic(url: str, length: int) -> None:
    anthropic = pytest.importorskip("anthropic")
    source = {"type": "base64", "media_type": "image/jpeg", "data": DATA}
    content: Any = [{"type": "image", "source": source}, {"type": "text", "text": TEXT}]
    messages: Any = [{"role": "user", "content": content}]
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:
        reply = client.messages.create(model="tiny:1m", messages=messages, max_tokens=4)
        assert reply.usage.cache_read_input_tokens == length
        counted = client.messages.count_tokens(model="tiny:1m", messages=messages)
        assert counted.input_tokens == length


def test_ollama(url: str, length: int, tmp_path: Path) -> None:
    ollama = pytest.importorskip("ollama")
    path = tmp_path / "photo.jpg"
    path.write_bytes(base64.b64decode(DATA))
    messages = [{"role": "user", "content": TEXT, "images": [str(path)]}]
    with ollama.Client(host=url) as client:
        assert "vision" in client.show("tiny:1m").capabilities
        options = {"num_predict": 4}
        assert client.chat("tiny:1m", messages, options=options).prompt_eval_count == length
        reply = client.generate("tiny:1m", TEXT, images=[path.read_bytes()], options=options)
        assert reply.prompt_eval_count == length


def test_langchain(url: str, length: int) -> None:
    langchain = pytest.importorskip("langchain_openai")
    chat = langchain.ChatOpenAI(
        base_url=f"{url}/v1", api_key="any", model="tiny:1m", max_tokens=4, max_retries=0
    )
    content = [
        {"type": "image", "source_type": "base64", "mime_type": "image/jpeg", "data": DATA},
        {"type": "text", "text": TEXT},
    ]
    reply = chat.invoke([{"role": "user", "content": content}])
    assert reply.usage_metadata["input_tokens"] == length


def test_litellm(url: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the network
    litellm = pytest.importorskip("litellm")
    reply = litellm.completion(
        "openai/tiny:1m", CHAT, api_base=f"{url}/v1", api_key="any", max_tokens=4
    )
    assert reply.usage.prompt_tokens_details.cached_tokens == length

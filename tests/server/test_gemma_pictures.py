"""Gemma 3's pictures end to end: where its template writes one word the model reads a whole picture
between its own, as the reference processor has it; what is shared is shared, and pictures are read
whole.
"""

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from flm.core.picture import Picture, is_picture
from flm.core.prompt import BoundaryKind, Prompt
from flm.core.step import Step
from flm.engine.conversation import Conversations
from flm.engine.residency import Resident
from flm.engine.terms import Terms
from flm.graph.bundle import Bundle
from flm.models.compile import compile_model
from flm.server.apis.openai import ChatBody, conversation
from flm.server.app import create_app
from flm.server.residence.residence import Residence
from flm.text.sight.scaled import scaled
from tests.models import seen_gemma3
from tests.models.seen import pictures
from tests.models.seen_gemma3 import TOKENS
from tests.server.house import TOKENIZER
from tests.server.seeing import SEES, opened, sent

ONE, OTHER, LONG, SQUARE = pictures()
DARKER = Picture(ONE.width, ONE.height, bytes(value // 2 for value in ONE.rgb))
SYSTEM = "you look at pictures and say in a few plain words what is in them and what it is for"
TEXT = "what is in this picture, and what is it for? say it in a few words please"
# The system text stands in the first user turn; parts are texts, and a word for each picture.
TEMPLATE = """\
{%- set turns = messages %}
{%- set first = '' %}
{%- if messages[0].role == 'system' %}
{%- set first = messages[0].content + '\n\n' %}
{%- set turns = messages[1:] %}
{%- endif %}
{%- for message in turns -%}
<start_of_turn>{{ 'model' if message.role == 'assistant' else 'user' }}
{{ first if loop.first else '' }}
{%- if message.content is string %}{{ message.content | trim }}
{%- else %}{% for part in message.content -%}
{{ '<start_of_image>' if part.type == 'image' else part.text | trim }}
{%- endfor %}{% endif %}<end_of_turn>
{% endfor %}
{%- if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
NAMES = {
    "<repo_name>": "<start_of_turn>",
    "<reponame>": "<end_of_turn>",
    "<file_sep>": "<unused0>",
    "<filename>": "<start_of_image>",
    "<gh_stars>": "<end_of_image>",
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    scratch = tmp_path_factory.mktemp("gemma")
    folder = seen_gemma3.seeing_folder(scratch)
    words = (TOKENIZER / "tokenizer.json").read_text(encoding="utf-8")
    for before, after in NAMES.items():
        words = words.replace(json.dumps(before), json.dumps(after))
    (folder / "tokenizer.json").write_text(words, encoding="utf-8")
    shutil.copy(TOKENIZER / "tokenizer_config.json", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return compile_model(folder, scratch / "bundle")


@pytest.fixture
def resident(bundle: Bundle) -> Iterator[Resident]:
    with opened(bundle) as found:
        yield found


def part(picture: Picture) -> dict[str, Any]:
    url = f"data:image/png;base64,{sent(picture)}"
    return {"type": "image_url", "image_url": {"url": url}}


def chat(*parts: Any, system: str | None = SYSTEM, **more: Any) -> dict[str, Any]:
    content = [each if isinstance(each, dict) else {"type": "text", "text": each} for each in parts]
    first = [{"role": "system", "content": system}] if system else []
    return {"messages": [*first, {"role": "user", "content": content}], "max_tokens": 4, **more}


def asked(resident: Resident, *bodies: Any) -> list[dict[str, Any]]:
    async def send() -> list[dict[str, Any]]:
        residence = Residence()
        residence.settle(resident)
        transport = httpx.ASGITransport(app=create_app(SEES, residence))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            replies = []
            for body in bodies:
                given = {"model": "tiny:1m", **body}
                answer = await client.post("/v1/chat/completions", json=given, timeout=60)
                replies.append({"status": answer.status_code, **answer.json()})
            return replies

    return asyncio.run(send())


def usage(reply: dict[str, Any]) -> tuple[int, int]:
    assert reply["status"] == 200, reply
    told = reply["usage"]
    return told["prompt_tokens"], told["prompt_tokens_details"]["cached_tokens"]


def prompt_of(resident: Resident, body: dict[str, Any]) -> Prompt:
    given = ChatBody.model_validate({"model": "x", **body})
    said = conversation(given, model="x", settings=SEES, sight=resident.sight)
    terms = Terms(resident.card.sampling)
    return Conversations(resident).chat(said, terms, request_id="r")[0].request.prompt


def test_a_picture_stands_where_the_reference_processor_puts_it(resident: Resident) -> None:
    prompt = prompt_of(resident, chat("see", part(ONE), TEXT, part(LONG), system=None))
    first, second = prompt.pictures
    assert [each.end - each.start for each in prompt.pictures] == [TOKENS, TOKENS]
    texts, start = [], 0
    for each in (first, second):
        assert prompt.tokens[each.start : each.end] == each.ids
        texts.append(prompt.tokens[start : each.start])
        start = each.end
    texts.append(prompt.tokens[start:])
    decode = resident.tokenizer.decode
    assert [decode(ids, skip_special=False) for ids in texts] == [
        "<start_of_turn>user\nsee\n\n<start_of_image>",
        f"<end_of_image>\n\n{TEXT}\n\n<start_of_image>",
        "<end_of_image>\n\n<end_of_turn>\n<start_of_turn>model\n",
    ]


def test_conversations_with_a_system_text_share_it_though_their_pictures_differ(
    resident: Resident,
) -> None:
    bodies = [chat(part(ONE), TEXT), chat(part(DARKER), TEXT), chat(part(ONE), TEXT)]
    heads = [b for b in prompt_of(resident, bodies[0]).boundaries if b.kind is BoundaryKind.HEAD]
    assert len(heads) == 1
    (length, cold), (_, shared), (_, same) = map(usage, asked(resident, *bodies))
    assert cold == 0
    assert heads[0].offset <= shared < length - TOKENS
    assert same == length


def test_warm_equals_cold_behind_pictures(bundle: Bundle) -> None:
    first = chat(part(ONE), TEXT, part(OTHER), max_tokens=12)
    second = {**first, "messages": list(first["messages"])}
    second["messages"] += [
        {"role": "assistant", "content": "a cat"},
        chat(TEXT, part(SQUARE), system=None)["messages"][0],
    ]
    with opened(bundle) as cold:
        (wanted,) = asked(cold, second)
    with opened(bundle) as warm:
        _, got = asked(warm, first, second)
    assert usage(got)[1] > 2 * TOKENS
    assert got["choices"] == wanted["choices"]


def test_no_pass_ends_within_a_picture(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """However short chunks are, and wherever somebody else's prompt parted."""
    settings = replace(SEES, prefill_chunk_len=16)
    with opened(bundle, settings) as resident:
        spans = []
        runner = resident.thread.ask(lambda engine: engine._runner).result()
        run = runner.run

        def watched(step: Step) -> Any:
            spans.extend(step.spans)
            return run(step)

        monkeypatch.setattr(runner, "run", watched)
        asked(resident, chat(TEXT, part(ONE), part(OTHER), TEXT, part(SQUARE), "and now"))
        asked(resident, chat(TEXT, part(ONE), part(DARKER), TEXT), chat(TEXT, part(ONE), "why"))
    read = [span for span in spans if len(span.tokens) > 1]
    assert any(is_picture(token) for span in read for token in span.tokens)
    for span in read:
        for each in span.pictures:
            assert span.end <= each.start or each.end <= span.start or (
                span.start <= each.start and each.end <= span.end
            )  # fmt: skip


def test_what_stands_for_a_picture_is_no_text(resident: Resident) -> None:
    for word in ("<start_of_image>", "<unused0>"):
        (reply,) = asked(resident, chat(part(ONE), word))
        assert reply["status"] == 400
        assert "2 places for 1 images" in reply["error"]["message"]
        (reply,) = asked(resident, chat("without a picture", word))
        assert reply["status"] == 200


def test_a_large_picture_is_scaled_once(resident: Resident) -> None:
    """Not to what --img-pre-resize says first: it is as many tokens anyway."""
    random = np.random.default_rng(3)
    large = Picture(300, 900, random.integers(0, 256, 300 * 900 * 3, np.uint8).tobytes())
    (shown,) = prompt_of(resident, chat(part(large))).pictures
    assert shown.picture == scaled(large, 48, 48, smooth=False)


def test_an_image_that_may_be_too_few_tokens_is_refused(resident: Resident) -> None:
    (reply,) = asked(resident, chat(part(ONE), **{"image-max-tokens": TOKENS - 1}))
    assert reply["status"] == 400
    assert f"as {TOKENS} tokens" in reply["error"]["message"]

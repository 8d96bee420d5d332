"""Pictures end to end: every API passes them through, the prefix cache knows them by their pixels,
and none is encoded twice.
"""

import asyncio
import base64
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from flm.core.alike import common_length
from flm.core.chat import Conversation
from flm.core.picture import Picture
from flm.core.prompt import Prompt
from flm.engine.conversation import Conversations
from flm.engine.plan import looking_bytes
from flm.engine.residency import Resident
from flm.engine.terms import Terms
from flm.errors import BadRequest
from flm.graph.bundle import Bundle
from flm.llm import LLM
from flm.prefix.changes import Change
from flm.runner.runner import Runner
from flm.server.apis.openai import ChatBody, conversation
from flm.server.app import create_app
from flm.server.reasons import reason
from flm.server.residence.residence import Residence
from tests.models.seen import pictures
from tests.server.seeing import ROWS, SEES, opened, rows_bundle, seeing_bundle, sent

ONE, OTHER, _, SQUARE = pictures()
# The same size, other pixels.
DARKER = Picture(ONE.width, ONE.height, bytes(value // 2 for value in ONE.rgb))
TEXT = "what is in this picture, and what is it for? say it in a few words please"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return seeing_bundle(tmp_path_factory.mktemp("sees"))


@pytest.fixture
def resident(bundle: Bundle) -> Iterator[Resident]:
    with opened(bundle) as found:
        yield found


def asked(resident: Resident, path: str, *bodies: Any) -> list[dict[str, Any]]:
    async def send() -> list[dict[str, Any]]:
        async with client_of(resident) as client:
            replies = []
            for body in bodies:
                answer = await client.post(path, json={"model": "tiny:1m", **body}, timeout=60)
                replies.append({"status": answer.status_code, **answer.json()})
            return replies

    return asyncio.run(send())


def client_of(resident: Resident) -> httpx.AsyncClient:
    residence = Residence()
    residence.settle(resident)
    transport = httpx.ASGITransport(app=create_app(SEES, residence))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


def part(picture: Picture, form: str = "PNG", **more: Any) -> dict[str, Any]:
    url = f"data:image/{form.lower()};base64,{sent(picture, form)}"
    return {"type": "image_url", "image_url": {"url": url, **more}}


def chat(*parts: Any, **more: Any) -> dict[str, Any]:
    content = [each if isinstance(each, dict) else {"type": "text", "text": each} for each in parts]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 4, **more}


def usage(reply: dict[str, Any]) -> tuple[int, int]:
    assert reply["status"] == 200, reply
    told = reply["usage"]
    return told["prompt_tokens"], told["prompt_tokens_details"]["cached_tokens"]


def test_the_same_picture_in_another_file_is_reused_to_the_end(resident: Resident) -> None:
    wrapped = part(ONE)
    head, text = wrapped["image_url"]["url"].split(",")
    lines = [text[at : at + 76] for at in range(0, len(text), 76)]
    wrapped["image_url"]["url"] = f"{head}," + "\r\n".join(lines)
    shown = (part(ONE), part(ONE, "WEBP"), wrapped)
    first, *others = asked(resident, "/v1/chat/completions", *[chat(each, TEXT) for each in shown])
    length, cached = usage(first)
    assert cached == 0
    for other in others:
        assert usage(other) == (length, length)
        assert other["choices"][0]["message"] == first["choices"][0]["message"]


def test_another_picture_of_the_same_size_is_read_from_there_on(resident: Resident) -> None:
    before = "one two three four five six seven eight nine ten eleven twelve"
    shown = [chat(before, part(each), TEXT) for each in (ONE, DARKER, SQUARE, DARKER)]
    replies = asked(resident, "/v1/chat/completions", *shown)
    lengths, cached = zip(*map(usage, replies), strict=True)
    assert lengths[0] == lengths[1] != lengths[2]
    text_only = asked(resident, "/v1/chat/completions", chat(before))[0]["usage"]["prompt_tokens"]
    assert 0 <= cached[2] <= text_only  # up to the picture, where both have parted before
    assert cached[3] == lengths[3]
    one, other = (prompts(resident, body) for body in shown[:2])
    assert (
        common_length(one.tokens, other.tokens) == one.pictures[0].start == other.pictures[0].start
    )


def test_a_boundary_never_falls_inside_a_picture(resident: Resident) -> None:
    body = chat("look", part(ONE), "and", part(OTHER), TEXT)
    asked(resident, "/v1/chat/completions", body)
    prompt = prompts(resident, body)
    assert len(prompt.pictures) == 2
    for each in prompt.pictures:
        assert prompt.tokens[each.start : each.end] == each.ids
        assert not any(each.start < b.offset < each.end for b in prompt.boundaries)


def read(resident: Resident, body: dict[str, Any]) -> Conversation:
    given = ChatBody.model_validate({"model": "x", **body})
    return conversation(given, model="x", settings=SEES, sight=resident.sight)


def prompts(resident: Resident, body: dict[str, Any]) -> Prompt:
    asked, terms = read(resident, body), Terms(resident.card.sampling)
    return Conversations(resident).chat(asked, terms, request_id="r")[0].request.prompt


def test_no_picture_is_encoded_twice_even_if_its_prompt_is_read_again(
    resident: Resident,
) -> None:
    eyes = eyes_of(resident)
    bodies = [
        chat(part(ONE), TEXT),
        chat("now", part(ONE), TEXT),
        chat("so", part(ONE), "or", part(ONE)),
    ]
    replies = asked(resident, "/v1/chat/completions", *bodies)
    assert all(usage(reply)[1] < 20 for reply in replies)
    assert eyes.encoded == 1
    asked(resident, "/v1/chat/completions", chat(part(DARKER), TEXT))
    assert eyes.encoded == 2


def test_metrics_tell_how_often_a_tower_ran_and_what_is_kept_of_it(resident: Resident) -> None:
    async def scrape() -> str:
        async with client_of(resident) as client:
            return (await client.get("/metrics")).text

    def told() -> dict[str, float]:
        found = re.findall(r"^flm_pictures_(\w+) (\S+)$", asyncio.run(scrape()), re.MULTILINE)
        return {name: float(value) for name, value in found}

    assert set(told().values()) == {0}
    asked(resident, "/v1/chat/completions", chat(part(ONE), TEXT), chat("now", part(ONE)))
    once = told()
    assert once["encoded_total"] == 1
    assert once["encoding_seconds_total"] > 0
    assert once["bytes"] == len(prompts(resident, chat(part(ONE))).pictures[0].ids) * 128 * 4


def test_a_turn_decodes_what_is_new_in_it(resident: Resident) -> None:
    """By whichever API, and the facade; what is kept goes with the model."""
    body = chat(part(ONE), part(OTHER), TEXT)
    said = [
        {"role": "assistant", "content": "a cat"},
        {"role": "user", "content": [part(SQUARE), {"type": "text", "text": TEXT}]},
    ]
    later = {**body, "messages": [*body["messages"], *said]}
    asked(resident, "/v1/chat/completions", body)
    assert resident.album.made == 2
    asked(resident, "/v1/chat/completions", later, later)
    assert resident.album.made == 3
    own = {"role": "user", "content": TEXT, "images": [sent(ONE), sent(SQUARE)]}
    asked(resident, "/api/chat", {"messages": [own], "stream": False})
    source = {"type": "base64", "media_type": "image/png", "data": sent(ONE)}
    asked(resident, "/v1/messages", chat({"type": "image", "source": source}, TEXT))
    shown = {"type": "input_image", "image_url": part(OTHER)["image_url"]["url"]}
    asked(resident, "/v1/responses", {"input": [{"role": "user", "content": [shown]}]})
    LLM(resident, SEES).chat(later["messages"], max_tokens=1)
    assert resident.album.made == 3
    resident.album.check()


def eyes_of(resident: Resident) -> Any:
    runner: Runner = resident.thread.ask(lambda engine: engine._runner).result()
    assert runner.eyes
    return runner.eyes


def test_two_pictures_that_take_turns_are_both_kept(resident: Resident) -> None:
    bodies = [chat(part(each), TEXT) for each in (ONE, DARKER, ONE, DARKER, ONE)]
    replies = asked(resident, "/v1/chat/completions", *bodies)
    for reply in replies[2:]:
        length, cached = usage(reply)
        assert cached == length


@pytest.fixture(params=["state", *ROWS])
def either(
    request: pytest.FixtureRequest, bundle: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> Bundle:
    if request.param == "state":
        return bundle
    return rows_bundle(tmp_path_factory.mktemp("rows"), request.param)


def assert_warm_equals_cold(bundle: Bundle, picture: Picture) -> None:
    long = chat(part(picture), TEXT, max_tokens=12)
    long["messages"] += [
        {"role": "assistant", "content": "a cat"},
        {"role": "user", "content": TEXT},
    ]
    with opened(bundle) as cold:
        (wanted,) = asked(cold, "/v1/chat/completions", long)
    with opened(bundle) as warm:
        _, got = asked(warm, "/v1/chat/completions", chat(part(picture), TEXT), long)
    assert usage(got)[1] > 0
    assert got["choices"] == wanted["choices"]


def test_warm_equals_cold_behind_a_picture(either: Bundle) -> None:
    assert_warm_equals_cold(either, ONE)


def test_every_api_shows_the_model_the_same_picture(resident: Resident) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": sent(ONE)}
    said = [{"type": "image", "source": source}, {"type": "text", "text": TEXT}]
    (openai,) = asked(resident, "/v1/chat/completions", chat(part(ONE), TEXT))
    length, _ = usage(openai)
    message = {"role": "user", "content": said}
    (anthropic,) = asked(resident, "/v1/messages", {"messages": [message], "max_tokens": 4})
    assert anthropic["usage"]["cache_read_input_tokens"] == length
    shown = {"type": "input_image", "image_url": f"data:image/png;base64,{sent(ONE)}"}
    item = {"role": "user", "content": [shown, {"type": "input_text", "text": TEXT}]}
    (responses,) = asked(resident, "/v1/responses", {"input": [item], "max_output_tokens": 4})
    assert responses["usage"]["input_tokens_details"]["cached_tokens"] == length
    own = {"role": "user", "content": TEXT, "images": [sent(ONE)]}
    for path, body in (
        ("/api/chat", {"messages": [own]}),
        ("/api/generate", {"prompt": TEXT, "images": [sent(ONE)]}),
    ):
        given = {**body, "stream": False, "options": {"num_predict": 4}}
        (ollama,) = asked(resident, path, given)
        assert ollama["status"] == 200
        assert ollama["prompt_eval_count"] == length


@pytest.mark.parametrize("name", ["image-max-tokens", "image_max_tokens"])
def test_a_request_may_say_what_a_picture_costs(resident: Resident, name: str) -> None:
    """In every API, and never more than the server allows."""
    url = part(OTHER)["image_url"]["url"]
    source = {"type": "base64", "media_type": "image/png", "data": sent(OTHER)}
    openai = chat(part(OTHER), TEXT)
    shown = {"type": "input_image", "image_url": url}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": openai,
        "/v1/messages": chat({"type": "image", "source": source}, TEXT),
        "/v1/messages/count_tokens": chat({"type": "image", "source": source}, TEXT),
        "/v1/responses": {"input": [{"role": "user", "content": [shown]}], "max_output_tokens": 4},
        "/api/chat": {"messages": [{"role": "user", "content": "a", "images": [sent(OTHER)]}]},
        "/api/generate": {"prompt": "a", "images": [sent(OTHER)]},
    }
    for path, body in bodies.items():
        few = {"stream": False, "options": {"num_predict": 4}} if "/api/" in path else {}
        usual, most, least = asked(
            resident, path, body | few, body | few | {name: 10**6}, body | few | {name: 4}
        )
        assert length(usual) == length(most)
        assert length(usual) > length(least), path


def length(reply: dict[str, Any]) -> int:
    assert reply["status"] in (200, "incomplete", "completed"), reply
    told = reply.get("usage", reply)
    names = ("prompt_tokens", "prompt_eval_count", "input_tokens")
    read = next(int(told[name]) for name in names if name in told)
    return read + int(told.get("cache_read_input_tokens") or 0)


def test_a_tool_may_answer_with_a_picture(resident: Resident) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "call_1", "content": [part(ONE)]}
    body = chat(TEXT)
    body["messages"] += [{"role": "assistant", "content": None, "tool_calls": [call]}, result]
    prompt = prompts(resident, body)
    assert [each.place for each in prompt.pictures] == ["picture 1 of messages[2]"]


def test_text_that_looks_like_a_picture_is_none(resident: Resident) -> None:
    body = chat(part(ONE), "<|image_pad|>")
    (reply,) = asked(resident, "/v1/chat/completions", body)
    assert reply["status"] == 400
    assert "2 places for 1 images" in reply["error"]["message"]


def test_what_differs_is_named_by_its_picture(resident: Resident) -> None:
    def told(picture: Picture) -> dict[str, Any]:
        body = chat(TEXT, part(ONE), part(picture), "and " + TEXT)
        body["messages"] += [
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": TEXT},
        ]
        return body

    asked(resident, "/v1/chat/completions", told(OTHER))
    prompt = prompts(resident, told(SQUARE))
    finding = resident.thread.ask(lambda engine: engine.cache.look(prompt)).result()
    assert finding.seen == prompt.pictures[1].start
    explanation = reason(resident, read(resident, told(SQUARE)), finding)
    assert explanation
    assert explanation.place.plain == "picture 2 of messages[0]"
    assert explanation.change is Change.EDITED


def test_the_facade_takes_pictures_of_every_kind(resident: Resident, tmp_path: Path) -> None:
    path, llm = tmp_path / "one.png", LLM(resident, SEES)
    path.write_bytes(base64.b64decode(sent(ONE)))
    url = part(ONE)["image_url"]["url"]
    image = Image.open(path)
    first, *others = [
        [{"role": "user", "content": content}]
        for content in (
            [path, TEXT],
            [path.read_bytes(), TEXT],
            [image, {"type": "text", "text": TEXT}],
            [{"type": "image", "image": str(path)}, TEXT],
            [{"type": "image", "image": url}, TEXT],
            [part(ONE), TEXT],
        )
    ]
    wanted = llm.chat(first, max_tokens=4)
    assert wanted.usage.cached_tokens == 0
    for messages in others:
        reply = llm.chat(messages, max_tokens=4)
        assert (reply.text, reply.usage.cached_tokens) == (wanted.text, wanted.usage.prompt_tokens)
    (openai,) = asked(resident, "/v1/chat/completions", chat(part(ONE), TEXT))
    assert usage(openai)[1] == wanted.usage.prompt_tokens, "as over HTTP"
    for content in ([{"type": "text"}], [path.with_name("none.png")], ["a", {"image": b"GIF8"}]):
        with pytest.raises(BadRequest):
            llm.chat([{"role": "user", "content": content}])


def test_who_sees_says_so(resident: Resident, bundle: Bundle) -> None:
    async def told() -> tuple[Any, Any]:
        residence = Residence()
        residence.settle(resident)
        transport = httpx.ASGITransport(app=create_app(SEES, residence))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            models = await client.get("/v1/models")
            shown = await client.post("/api/show", json={"model": "tiny:1m"})
            return models.json()["data"][0], shown.json()

    model, shown = asyncio.run(told())
    assert "vision" in model["labels"]
    assert "vision" in shown["capabilities"]


def test_what_pictures_take_is_planned(resident: Resident) -> None:
    sight, plan = resident.sight, resident.plan
    assert sight
    assert sight.patch_values > 0
    assert plan.looking == looking_bytes(sight, SEES)
    assert plan.pictures == (SEES.image_cache_mb + SEES.image_decoded_mb) * 2**20
    without = replace(plan, looking=0, pictures=0)
    assert plan.needed == without.needed + plan.looking + plan.pictures


def test_on_an_npu_nothing_is_promised(bundle: Bundle) -> None:
    with opened(bundle, replace(SEES, device="npu-sim")) as resident:
        assert resident.plan.looking == resident.plan.pictures == 0
        (reply,) = asked(resident, "/v1/chat/completions", chat(part(ONE), TEXT))
        assert reply["status"] == 400
        assert "reads text only" in reply["error"]["message"]

"""POST /v1/chat/completions and /v1/completions: parse, prepare, run, answer."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from flm.engine.conversation import Answer, Conversations
from flm.engine.residency import Resident
from flm.errors import BadRequest
from flm.server import journal
from flm.server.documented import documented
from flm.server.domains import domain_of
from flm.server.faults import not_valid
from flm.server.generate import ClientLeft, Generation
from flm.server.openai import (
    CHOICES_MAX,
    ChatBody,
    CompletionBody,
    ReplyBody,
    conversation,
    refuse_unsupported,
    terms,
)
from flm.server.replies import CHAT, TEXT, Form, Replies
from flm.server.residence import Residence
from flm.server.sse import EventStream
from flm.server.wire import Json, parse_object, read_body
from flm.settings import Settings

BodyT = TypeVar("BodyT", bound=ReplyBody)
CLIENT_CLOSED_REQUEST = 499  # nginx's word for it; nobody sees it but the log


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request understood: for each prompt its answers, not yet running."""

    body: ReplyBody
    form: Form
    request_id: str
    resident: Resident
    prompts: list[list[Answer]]


def routes(settings: Settings, residence: Residence) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=documented(ChatBody))
    async def chat(request: Request) -> Response:
        return await answer(request, prepare_chat)

    @router.post("/v1/completions", openapi_extra=documented(CompletionBody))
    async def completions(request: Request) -> Response:
        return await answer(request, prepare_text)

    async def answer(
        request: Request, prepare: Callable[[bytes, str | None], Prepared]
    ) -> Response:
        _ = residence.resident  # while it loads, no body is worth reading
        raw = await read_body(request, settings)
        # Parsing, rendering and encoding grow with the prompt: not on the loop that streams.
        prepared = await asyncio.to_thread(prepare, raw, request.state.api_key)
        return await _run(request, prepared, settings)

    def prepare_chat(raw: bytes, key: str | None) -> Prepared:
        fields = parse_object(raw)
        _refuse_many(fields.get("messages"), settings.messages_max)
        body = _valid(ChatBody, fields)
        resident = residence.find(body.model)
        request_id = _new_id(CHAT)
        answers = Conversations(resident).chat(
            conversation(body, model=resident.card.tag, settings=settings),
            terms(body, resident.card.sampling),
            request_id=request_id,
            domain=domain_of(key, body.cache_salt, shared=settings.prefix_shared),
        )
        return Prepared(body, CHAT, request_id, resident, [answers])

    def prepare_text(raw: bytes, key: str | None) -> Prepared:
        body = _valid(CompletionBody, parse_object(raw))
        resident = residence.find(body.model)
        given = body.prompt
        several = isinstance(given, list) and given and not isinstance(given[0], int)
        prompts: list[Any] = given if several else [given]  # type: ignore[assignment]
        if len(prompts) * (body.n or 1) > CHOICES_MAX:
            raise BadRequest(
                f"prompt and n ask for {len(prompts) * (body.n or 1)} replies at once",
                fix=f"ask for up to {CHOICES_MAX}",
                param="prompt",
            )
        request_id = _new_id(TEXT)
        asked = terms(body, resident.card.sampling)
        ids = [f"{request_id}-p{index}" if index else request_id for index in range(len(prompts))]
        conversations = Conversations(resident)
        domain = domain_of(key, body.cache_salt, shared=settings.prefix_shared)
        answers = [
            conversations.text(prompt, asked, request_id=own, domain=domain)
            for prompt, own in zip(prompts, ids, strict=True)
        ]
        return Prepared(body, TEXT, request_id, resident, answers)

    return router


def _refuse_many(messages: object, messages_max: int) -> None:
    """Before they are looked at one by one."""
    if isinstance(messages, list) and len(messages) > messages_max:
        raise BadRequest(
            f"messages has {len(messages):,} entries; {messages_max:,} are read",
            fix="send fewer, or raise messages-max in flm.toml",
            param="messages",
        )


def _valid(kind: type[BodyT], fields: Mapping[str, Any]) -> BodyT:
    try:
        body = kind.model_validate(fields)
    except ValidationError as error:
        raise not_valid(error, fields) from error
    refuse_unsupported(body)
    return body


def _new_id(form: Form) -> str:
    return f"{form.id_prefix}-{secrets.token_hex(12)}"


async def _run(request: Request, prepared: Prepared, settings: Settings) -> Response:
    body, resident = prepared.body, prepared.resident
    generation = Generation(Conversations(resident), prepared.prompts)
    replies = Replies(
        prepared.form, request_id=prepared.request_id, model=body.model, resident=resident
    )

    def ended(status: int, ending: str) -> None:
        journal.note(request, status, ending, generation, model=resident.card.tag)

    if body.stream:
        return EventStream(
            generation,
            replies,
            wants_usage=body.wants_usage,
            ping_interval_s=settings.ping_interval_s,
            ended=ended,
        )
    try:
        async with generation.running(request.receive):
            while not generation.finished:
                await generation.read()
    except ClientLeft as left:
        ended(CLIENT_CLOSED_REQUEST, left.ending)
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    ended(200, "")
    return Json(replies.whole(generation))

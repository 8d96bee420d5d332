"""All that is answered: OpenAI's, Anthropic's and Ollama's POST routes: prepare, run, answer."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from starlette.background import BackgroundTask

from flm.engine.conversation import Conversations
from flm.server import journal
from flm.server.anthropic import CountBody, MessagesBody
from flm.server.apis import CHATS, COUNTS, MESSAGES, OLLAMA_CHATS, OLLAMA_PROMPTS, RESPONSES
from flm.server.documented import documented
from flm.server.generate import ClientLeft, Generation
from flm.server.journal import CLIENT_CLOSED_REQUEST
from flm.server.metrics import Served
from flm.server.news import News
from flm.server.ollama import OllamaChatBody, OllamaGenerateBody
from flm.server.ollama_replies import LineReplies
from flm.server.openai import ChatBody, CompletionBody
from flm.server.prepare import Preparation, Prepared
from flm.server.reasons import note_reason
from flm.server.reporter import Reporter
from flm.server.residence import Residence
from flm.server.responses import ResponsesBody
from flm.server.running import Running
from flm.server.sse import EventStream
from flm.server.wire import Json, parse_object, read_body
from flm.settings import Settings

T = TypeVar("T")


def routes(
    settings: Settings, residence: Residence, served: Served, news: News, running: Running
) -> APIRouter:
    router = APIRouter()
    preparation = Preparation(settings, residence)

    @router.post("/v1/chat/completions", openapi_extra=documented(ChatBody))
    async def chat(request: Request) -> Response:
        return await answer(request, partial(preparation.chat, CHATS))

    @router.post("/v1/completions", openapi_extra=documented(CompletionBody))
    async def completions(request: Request) -> Response:
        return await answer(request, preparation.text)

    @router.post("/v1/responses", openapi_extra=documented(ResponsesBody))
    async def responses(request: Request) -> Response:
        return await answer(request, partial(preparation.chat, RESPONSES))

    @router.post("/v1/messages", openapi_extra=documented(MessagesBody))
    async def messages(request: Request) -> Response:
        return await answer(request, partial(preparation.chat, MESSAGES))

    @router.post("/v1/messages/count_tokens", openapi_extra=documented(CountBody))
    async def count(request: Request) -> Response:
        tokens = await understood(request, partial(preparation.count, COUNTS))
        return Json({"input_tokens": tokens})

    if settings.ollama:

        @router.post("/api/chat", openapi_extra=documented(OllamaChatBody))
        async def ollama_chat(request: Request) -> Response:
            return await answer(request, partial(preparation.chat, OLLAMA_CHATS))

        @router.post("/api/generate", openapi_extra=documented(OllamaGenerateBody))
        async def ollama_generate(request: Request) -> Response:
            return await answer(request, partial(preparation.chat, OLLAMA_PROMPTS))

    async def understood(
        request: Request, prepare: Callable[[Mapping[str, Any], str | None], T]
    ) -> T:
        _ = residence.resident  # while it loads, no body is worth reading
        raw, key = await read_body(request, settings), request.state.api_key
        return await asyncio.to_thread(lambda: prepare(parse_object(raw), key))

    async def answer(
        request: Request, prepare: Callable[[Mapping[str, Any], str | None], Prepared]
    ) -> Response:
        prepared = await understood(request, prepare)
        if isinstance(prepared.replies, LineReplies) and not prepared.prompts:
            return Json(prepared.replies.loaded())
        return await _run(request, prepared, settings, served, news, running)

    return router


async def _run(
    request: Request,
    prepared: Prepared,
    settings: Settings,
    served: Served,
    news: News,
    running: Running,
) -> Response:
    replies, resident = prepared.replies, prepared.resident
    reporter = Reporter(news, resident, prepared.prompts[0][0].request)
    generation = Generation(Conversations(resident), prepared.prompts, admitted=reporter.admitted)
    names = [name for name in (replies.id, prepared.body.request_id) if name]
    running.name(generation, names, key=request.state.api_key)
    background = BackgroundTask(_read_ahead, generation)
    loop = asyncio.get_running_loop()
    reporter.asked()

    def ended(status: int, ending: str) -> None:
        taken = journal.account(generation, ending)
        journal.note(request, status, taken, model=resident.card.tag)
        served.note(status, [one.answer.usage for one in generation.choices if one.answer.usage])
        reporter.ended(status, taken)
        for answers in generation.prompts:
            loop.run_in_executor(None, note_reason, resident, answers[0], reporter.explained)

    if prepared.body.stream:
        return EventStream(
            generation,
            replies,
            ping_interval_s=settings.ping_interval_s,
            ended=ended,
            background=background,
        )
    try:
        async with generation.running(request.receive):
            while not generation.finished:
                await generation.read()
    except ClientLeft as left:
        ended(CLIENT_CLOSED_REQUEST, left.ending)
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    ended(200, "")
    return Json(replies.whole(generation), background=background)


async def _read_ahead(generation: Generation) -> None:
    try:
        await asyncio.to_thread(generation.read_ahead)
    except Exception as error:  # the client has its answer
        journal.note_mistake(error)

"""All that is answered: the POST routes of OpenAI, Anthropic and Ollama."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from flm.server.admission import Admission
from flm.server.answering import Answering
from flm.server.apis.anthropic import CountBody, MessagesBody
from flm.server.apis.entries import (
    CHATS,
    COUNTS,
    MESSAGES,
    OLLAMA_CHATS,
    OLLAMA_PROMPTS,
    RESPONSES,
    Api,
)
from flm.server.apis.ollama import OllamaChatBody, OllamaGenerateBody
from flm.server.apis.openai import ChatBody, CompletionBody
from flm.server.apis.responses import ResponsesBody
from flm.server.prepare import Preparation
from flm.server.residence.residence import Residence
from flm.server.routes.documented import documented
from flm.server.wire import Json
from flm.settings import Settings


def routes(
    settings: Settings,
    residence: Residence,
    admission: Admission,
    preparation: Preparation,
    answering: Answering,
) -> APIRouter:
    router = APIRouter(dependencies=[Depends(residence.guest)])

    async def answer(request: Request, api: Api[Any]) -> Response:
        prepare = partial(preparation.chat, api)
        return await answering.answer(request, prepare, pings=api.pings)

    @router.post("/v1/chat/completions", openapi_extra=documented(ChatBody))
    async def chat(request: Request) -> Response:
        """OpenAI's chats."""
        return await answer(request, CHATS)

    @router.post("/v1/completions", openapi_extra=documented(CompletionBody))
    async def completions(request: Request) -> Response:
        """OpenAI's older way: a text is gone on from, without a template."""
        return await answering.answer(request, preparation.text)

    @router.post("/v1/responses", openapi_extra=documented(ResponsesBody))
    async def responses(request: Request) -> Response:
        """OpenAI's Responses; nothing is stored."""
        return await answer(request, RESPONSES)

    @router.post("/v1/messages", openapi_extra=documented(MessagesBody))
    async def messages(request: Request) -> Response:
        """Anthropic's messages."""
        return await answer(request, MESSAGES)

    @router.post("/v1/messages/count_tokens", openapi_extra=documented(CountBody))
    async def count(request: Request) -> Response:
        """How many tokens such a request has."""
        fields, key = await admission.fields(request), request.state.api_key
        work = partial(preparation.count, COUNTS, fields, key)
        return Json({"input_tokens": await admission.admitted(request, work)})

    if settings.ollama:

        @router.post("/api/chat", openapi_extra=documented(OllamaChatBody))
        async def ollama_chat(request: Request) -> Response:
            """Ollama's chats."""
            return await answer(request, OLLAMA_CHATS)

        @router.post("/api/generate", openapi_extra=documented(OllamaGenerateBody))
        async def ollama_generate(request: Request) -> Response:
            """Ollama's way from one prompt."""
            return await answer(request, OLLAMA_PROMPTS)

    return router

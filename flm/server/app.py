"""The HTTP application: which path leads where, and one way out for everything that fails."""

from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from flm import __version__
from flm.errors import FlmError, NoSuchMethod, NoSuchPath
from flm.server import journal
from flm.server.admission import Admission
from flm.server.answering import Answering
from flm.server.apis.anthropic import CountBody, MessagesBody
from flm.server.apis.ollama import OllamaChatBody, OllamaGenerateBody
from flm.server.apis.openai import ChatBody, CompletionBody
from flm.server.apis.responses import ResponsesBody
from flm.server.faults import fault_response, internal
from flm.server.guard import Guard
from flm.server.journal import CLIENT_CLOSED_REQUEST
from flm.server.prepare import Preparation
from flm.server.residence.embedders import Embedders
from flm.server.residence.residence import Residence
from flm.server.routes import (
    embeddings,
    endpoints,
    fastflowlm,
    front,
    metrics,
    models,
    news,
    ollama_models,
    prefix_cache,
    tokens,
)
from flm.server.routes.documented import openapi
from flm.server.routes.embeddings import EmbedBody, EmbeddingsBody, OldEmbedBody
from flm.server.routes.fastflowlm import CancelBody
from flm.server.routes.metrics import Served
from flm.server.routes.ollama_models import ShowBody
from flm.server.routes.prefix_cache import WarmBody
from flm.server.routes.tokens import DetokenizeBody, TokenizeBody
from flm.server.running import Running
from flm.server.wire import Json
from flm.settings import Settings

ENDPOINTS = "try POST /v1/chat/completions, /v1/responses, /v1/messages or GET /v1/models; "
ENDPOINTS += "GET /openapi.json lists all there is"
# Where a path begins: why it is not here, and what to do.
LACKING = {
    "/v1/audio/": ("flm runs no speech model yet", "have it done elsewhere, and send the text"),
    "/v1/images/": ("flm draws no images", "ask what they show in POST /v1/chat/completions"),
}

BODIES = (
    ChatBody,
    CompletionBody,
    WarmBody,
    MessagesBody,
    CountBody,
    ResponsesBody,
    OllamaChatBody,
    OllamaGenerateBody,
    ShowBody,
    TokenizeBody,
    DetokenizeBody,
    CancelBody,
    EmbeddingsBody,
    EmbedBody,
    OldEmbedBody,
)


def create_app(settings: Settings, residence: Residence) -> FastAPI:
    """Answers at once; what needs a model says 503 until a first one is in the residence."""
    # No pages that load scripts from elsewhere, and no redirects that lose a body.
    app = FastAPI(
        title="flm", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.add_middleware(Guard, settings=settings)
    served, told, running = Served(), news.News(), Running()
    admission, preparation = Admission(settings, residence), Preparation(settings, residence)
    answering = Answering(settings, residence, admission, served, told, running)
    app.state.news = told
    app.include_router(front.routes())
    app.include_router(endpoints.routes(settings, residence, admission, preparation, answering))
    app.include_router(prefix_cache.routes(settings, residence, admission, preparation))
    app.include_router(metrics.routes(residence, served))
    app.include_router(news.routes(settings, residence, told))
    app.include_router(models.routes(residence))
    embedders = Embedders(settings, residence)
    app.include_router(embeddings.routes(settings, residence, embedders, served))
    app.include_router(tokens.routes(residence, admission, preparation))
    app.include_router(fastflowlm.routes(settings, residence, running))
    if settings.ollama:
        app.include_router(ollama_models.routes(settings, residence, embedders))
    _add_small_routes(app, residence)
    _add_ways_out(app, served)

    def document() -> dict[str, Any]:
        app.openapi_schema = app.openapi_schema or openapi(app, *BODIES)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
    return app


def _add_small_routes(app: FastAPI, residence: Residence) -> None:
    @app.get("/health")
    @app.head("/health", include_in_schema=False)
    async def health() -> Response:
        """200 once requests are taken; asks for no key."""
        resident = residence.here
        return Json({"status": "ok", "model": resident.card.tag if resident else None})

    @app.get("/version")
    @app.get("/v1/version")
    async def version() -> Response:
        """Which flm this is."""
        return Json({"version": __version__})


def _nowhere(place: str, path: str) -> NoSuchPath:
    for beginning, (why, fix) in LACKING.items():
        if path.startswith(beginning):
            return NoSuchPath(f"{place} leads nowhere: {why}", fix=fix)
    return NoSuchPath(f"{place} leads nowhere", fix=ENDPOINTS)


def _add_ways_out(app: FastAPI, served: Served) -> None:
    @app.exception_handler(FlmError)
    async def expected(request: Request, error: FlmError) -> Response:
        if request.method == "POST":
            journal.note_refusal(request, error)
            served.note(error.status)
        return fault_response(error, request.scope["path"])

    @app.exception_handler(HTTPException)
    async def routed(request: Request, error: HTTPException) -> Response:
        place = f"{request.method} {request.scope['path']:.100}"
        if error.status_code == 405:
            ways = (error.headers or {}).get("Allow", "another method")
            known: FlmError = NoSuchMethod(f"{place} is not possible", fix=f"use {ways}")
        else:
            known = _nowhere(place, request.scope["path"])
        return fault_response(known, request.scope["path"], error.headers)

    @app.exception_handler(ClientDisconnect)
    async def left(request: Request, error: ClientDisconnect) -> Response:
        """While it sent its body."""
        journal.note_leaving(request)
        served.note(CLIENT_CLOSED_REQUEST)
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        journal.note_mistake(error)
        return fault_response(internal(error), request.scope["path"])

"""POST /v1/embeddings, and Ollama's /api/embed and /api/embeddings: a vector for each text."""

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from flm import console
from flm.core.event import Usage
from flm.devices.device import Array
from flm.engine.embedder import Embedder
from flm.errors import BadRequest, FlmError, PassCancelled, PromptTooLong, UnsupportedFeature
from flm.server import journal
from flm.server.apis.bodies import Many, ModelBody, Whole
from flm.server.faults import valid
from flm.server.journal import CLIENT_CLOSED_REQUEST
from flm.server.leaving import left
from flm.server.residence.embedders import Embedders
from flm.server.residence.residence import Residence
from flm.server.routes.documented import documented
from flm.server.routes.metrics import Served
from flm.server.wire import Json, parse_object, read_body
from flm.settings import Settings

TEXTS_MAX = 2048  # of a request
TEXT_CHARS_MAX = 2**20  # of each
TOKENS_MAX = 300_000  # of all together

Wanted = Callable[[], bool]  # whether the client is still there
Input = str | Many[str] | Many[int] | Many[Many[int]]


class EmbeddingBody(ModelBody):
    """`truncate`: of a text that is too long the beginning counts."""

    dimensions: Whole = Field(None, ge=1)
    truncate: bool | None = None


class EmbeddingsBody(EmbeddingBody):
    """OpenAI's. Token ids are of this model's vocabulary, those that open and close it included."""

    input: Input
    encoding_format: Literal["float", "base64"] | None = None


class EmbedBody(EmbeddingBody):
    """Ollama's."""

    input: str | Many[str]
    truncate: bool | None = True


class OldEmbedBody(EmbeddingBody):
    """Ollama's older one."""

    prompt: str
    truncate: bool | None = True


@dataclass(frozen=True, slots=True)
class Embedded:
    vectors: list[Array]
    tokens: int
    seconds: float
    body: EmbeddingBody


Find = Callable[[str], Embedder]
Reply = Callable[[Mapping[str, Any], Find, Wanted], tuple[Any, Embedded]]


def routes(
    settings: Settings, residence: Residence, embedders: Embedders, served: Served
) -> APIRouter:
    router = APIRouter(dependencies=[Depends(residence.guest)])
    desk = Desk(settings, residence, embedders, served)

    @router.post("/v1/embeddings", openapi_extra=documented(EmbeddingsBody))
    async def embeddings(request: Request) -> Response:
        """OpenAI's embeddings."""
        return await desk.answer(request, _openai)

    if settings.ollama:

        @router.post("/api/embed", openapi_extra=documented(EmbedBody))
        async def embed(request: Request) -> Response:
            """Ollama's embeddings."""
            return await desk.answer(request, _ollama)

        @router.post("/api/embeddings", openapi_extra=documented(OldEmbedBody))
        async def old_embed(request: Request) -> Response:
            """Ollama's older way, of one text."""
            return await desk.answer(request, _old_ollama)

    return router


@dataclass(frozen=True, slots=True)
class Desk:
    """Where texts are taken, and their vectors given out."""

    settings: Settings
    residence: Residence
    embedders: Embedders
    served: Served

    async def answer(self, request: Request, reply: Reply) -> Response:
        guest, gone = request.state.guest, Event()
        self.residence.require_open()  # while nobody is let in, no body is worth reading
        raw = await read_body(request, self.settings)
        ended: list[FlmError] = []  # by the server, which stops

        def cut(why: FlmError) -> None:
            ended.append(why)
            gone.set()

        guest.cut = cut
        self.residence.enter_beside(guest)
        watch = asyncio.create_task(_watch(request, gone))
        try:
            with self.embedders.asked(guest):
                said, done = await asyncio.to_thread(
                    lambda: reply(
                        parse_object(raw),
                        lambda model: self.embedders.find(model, guest),
                        lambda: not gone.is_set(),
                    )
                )
                if done.body.keep_alive is not None:
                    self.embedders.keep_alive(guest, done.body.kept_s)
        except PassCancelled:
            if ended:
                raise ended[0] from None
            journal.note_leaving(request)
            self.served.note(CLIENT_CLOSED_REQUEST)
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        finally:
            gone.set()  # whoever else stops waiting: nothing is worked out for nobody
            watch.cancel()
        console.request(
            method=request.method,
            path=request.scope["path"],
            status=200,
            prompt_tokens=done.tokens,
            first_s=done.seconds,
            read_s=done.seconds,
        )
        self.served.note(200, [Usage(done.tokens, 0, 0, prefill_s=done.seconds)])
        return Json(said)


async def _watch(request: Request, gone: Event) -> None:
    await left(request.receive)
    gone.set()


def _openai(fields: Mapping[str, Any], find: Find, wanted: Wanted) -> tuple[Any, Embedded]:
    body = valid(EmbeddingsBody, fields)
    done = _embedded(body, body.input, find(body.model), wanted)
    as_text = body.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(v) if as_text else v.tolist()}
        for index, v in enumerate(done.vectors)
    ]
    usage = {"prompt_tokens": done.tokens, "total_tokens": done.tokens}
    return {"object": "list", "data": data, "model": body.model, "usage": usage}, done


def _ollama(fields: Mapping[str, Any], find: Find, wanted: Wanted) -> tuple[Any, Embedded]:
    began_ns = time.monotonic_ns()
    body = valid(EmbedBody, fields)
    embedder = find(body.model)
    loaded_ns = time.monotonic_ns()
    done = _embedded(body, body.input, embedder, wanted)
    said = {
        "model": body.model,
        "embeddings": [vector.tolist() for vector in done.vectors],
        "total_duration": time.monotonic_ns() - began_ns,
        "load_duration": loaded_ns - began_ns,
        "prompt_eval_count": done.tokens,
    }
    return said, done


def _old_ollama(fields: Mapping[str, Any], find: Find, wanted: Wanted) -> tuple[Any, Embedded]:
    body = valid(OldEmbedBody, fields)
    done = _embedded(body, body.prompt, find(body.model), wanted)
    return {"embedding": done.vectors[0].tolist()}, done


def _embedded(body: EmbeddingBody, given: Input, embedder: Embedder, wanted: Wanted) -> Embedded:
    if body.dimensions not in (None, embedder.width):
        raise UnsupportedFeature(
            f"{embedder.card.tag} gives {embedder.width} dimensions, not {body.dimensions}: a part "
            "of them means nothing",
            fix=f"leave dimensions out, or send {embedder.width}",
            param="dimensions",
        )
    texts = _token_ids(given, embedder)
    began = time.monotonic()
    for index, ids in enumerate(texts):
        if len(ids) > embedder.context_length and not body.truncate:
            raise _too_long(index, len(ids), embedder)
    texts = [embedder.tokenizer.cut(ids, embedder.context_length) for ids in texts]
    tokens = sum(map(len, texts))
    if tokens > TOKENS_MAX:
        raise BadRequest(
            f"input has {tokens:,} tokens; {TOKENS_MAX:,} are taken at once",
            fix="send fewer texts at a time",
            param="input",
        )
    vectors = embedder.embed(texts, wanted=wanted)
    return Embedded(vectors, tokens, time.monotonic() - began, body)


def _token_ids(given: Input, embedder: Embedder) -> list[list[int]]:
    """Of one text or several, which may be token ids already. Raises BadRequest."""
    one = isinstance(given, str) or (len(given) > 0 and isinstance(given[0], int))
    several: list[Any] = [given] if one else list(given)
    if not 0 < len(several) <= TEXTS_MAX:
        raise BadRequest(
            f"input has {len(several):,} texts; 1 to {TEXTS_MAX:,} are taken at once",
            fix="send fewer texts at a time",
            param="input",
        )
    for index, text in enumerate(several):
        if len(text) == 0:
            raise _at(index, "is empty", "send no empty texts")
        if len(text) > TEXT_CHARS_MAX:
            raise _at(index, f"has {len(text):,} characters", f"send up to {TEXT_CHARS_MAX:,}")
    if isinstance(several[0], str):
        return embedder.tokenizer.encode(several)
    vocabulary = embedder.tokenizer.vocabulary
    for index, ids in enumerate(several):
        if not 0 <= min(ids) <= max(ids) < vocabulary:
            raise _at(
                index,
                f"has a token id outside the {vocabulary:,} of {embedder.card.tag}",
                "send texts: token ids of another model mean nothing to this one",
            )
    return [list(ids) for ids in several]


def _too_long(index: int, tokens: int, embedder: Embedder) -> PromptTooLong:
    error = PromptTooLong(prompt_tokens=tokens, context_length=embedder.context_length)
    error.fix = "send shorter texts, or truncate: true to have their beginnings taken"
    error.param = f"input[{index}]"
    return error


def _at(index: int, what: str, fix: str) -> BadRequest:
    return BadRequest(f"input[{index}] {what}", fix=fix, param=f"input[{index}]")


def _base64(vector: Array) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")

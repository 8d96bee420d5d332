"""The prefix cache by HTTP: what is kept, why a prompt is read again, read ahead of need, let go.

Each client sees and touches its own domain alone (flm/server/domains.py).
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel

from flm.core.event import Event, Failed, Finished
from flm.core.finding import Finding
from flm.core.prompt import Prompt
from flm.core.request import Priority, SamplingParams
from flm.core.request import Request as Work
from flm.engine.answer import Answer
from flm.engine.engine import Engine
from flm.engine.residency import Resident
from flm.errors import BadRequest, NoModelLoaded, QueueFull
from flm.prefix.overview import kept_tiers, overview, with_disk
from flm.server.admission import Admission
from flm.server.apis.openai import ChatBody, CompletionBody
from flm.server.domains import SALT, domain_asked
from flm.server.prepare import Preparation, Prepared
from flm.server.reasons import reason
from flm.server.residence.residence import Residence
from flm.server.routes.documented import documented, query
from flm.server.routes.prefix_replies import explanation_reply, overview_reply
from flm.server.wire import Json
from flm.settings import Settings

T = TypeVar("T")
WARM_MAX = 32  # prompts that wait to be warmed, of all clients
TEXT = query("text", "1: with the beginning of each stretch, as text")


class WarmBody(BaseModel):
    """Several requests at once."""

    requests: list[ChatBody | CompletionBody]


class Warming:
    """Prompts to be read while nothing else is. Full is a 429."""

    def __init__(self) -> None:
        self._waiting: set[str] = set()
        self._lock = Lock()

    def submit(self, resident: Resident, requests: list[Work]) -> None:
        with self._lock:
            if len(self._waiting) + len(requests) > WARM_MAX:
                raise QueueFull(
                    f"{len(self._waiting)} of {WARM_MAX} prompts wait to be warmed already",
                    fix="send these once the others are read",
                )
            self._waiting |= {request.id for request in requests}
        submitted = 0
        try:
            for request in requests:
                resident.thread.submit(request, self._listen)
                submitted += 1
        finally:
            with self._lock:
                self._waiting -= {request.id for request in requests[submitted:]}

    def _listen(self, event: Event) -> None:
        """On the engine's thread."""
        if isinstance(event, Finished | Failed):
            with self._lock:
                self._waiting.discard(event.request_id)


def routes(
    settings: Settings, residence: Residence, admission: Admission, preparation: Preparation
) -> APIRouter:
    router = APIRouter(dependencies=[Depends(residence.guest)])
    warming = Warming()

    async def prepared(request: Request) -> list[Prepared]:
        """What one body or several ask for, of the model that is here unless they name one."""
        fields, key = await admission.fields(request), request.state.api_key
        usual = residence.usual
        return await admission.admitted(
            request, lambda: [preparation.either(usual | each, key) for each in _bodies(fields)]
        )

    @router.get("/v1/prefix-cache", openapi_extra={"parameters": [TEXT, SALT]})
    async def show(request: Request) -> Response:
        """What is kept of prompts, and what changes between them."""
        resident, domain = residence.resident, domain_asked(request, settings)
        view, disk = await _asked(resident, lambda e: (overview(e.cache, domain), e.cache.disk))
        if disk:
            view = await asyncio.to_thread(with_disk, view, disk.store)
        changes = resident.volatility.report(domain)
        return Json(overview_reply(view, resident, changes, text=text_asked(request)))

    @router.post("/v1/prefix-cache/explain", openapi_extra=documented(ChatBody, CompletionBody))
    async def explain(request: Request) -> Response:
        """How much of a request would be reused, and why no more; nothing runs."""
        resident, answer = _only_one(await prepared(request))
        prompt = answer.request.prompt
        finding, tiers = await _asked(resident, partial(_look, prompt=prompt))
        explanation = await asyncio.to_thread(reason, resident, answer.conversation, finding)
        changes = resident.volatility.report(prompt.domain)
        return Json(explanation_reply(resident, finding, tiers, explanation, changes))

    @router.post(
        "/v1/prefix-cache/warm",
        status_code=202,
        openapi_extra=documented(ChatBody, CompletionBody, WarmBody),
    )
    async def warm(request: Request) -> Response:
        """Reads ahead of need, while idle: one request, or several as `requests`."""
        asked = await prepared(request)
        resident = asked[0].resident
        _refuse_without_reuse(resident)
        prompts = [answers for each in asked for answers in each.prompts]
        requests = [_idle(answers[0].request) for answers in prompts]
        warming.submit(resident, requests)
        tokens = sum(len(one.prompt.tokens) for one in requests)
        return Json({"queued": len(requests), "prompt_tokens": tokens}, status_code=202)

    @router.post("/v1/prefix-cache/clear", openapi_extra={"parameters": [SALT]})
    async def clear(request: Request) -> Response:
        """Lets go of what is kept, in memory and on the disk."""
        return Json({"cleared": await _cleared(residence, domain_asked(request, settings))})

    return router


async def _cleared(residence: Residence, domain: str) -> int:
    try:
        resident = residence.resident
    except NoModelLoaded:
        left = residence.promised.left
        if not left.slot_count:
            raise
        return left.clear(domain)  # nobody else has it now
    cache, cleared = await _asked(resident, lambda e: (e.cache, e.clear(domain)))
    resident.volatility.forget(domain)
    return cleared + await asyncio.to_thread(cache.clear_disk, domain)


async def _asked(resident: Resident, work: Callable[[Engine], T]) -> T:
    """Of the engine's thread, between two steps."""
    return await asyncio.wrap_future(resident.thread.ask(work))


def text_asked(request: Request) -> bool:
    return request.query_params.get("text", "0") not in ("", "0", "false")


def _refuse_without_reuse(resident: Resident) -> None:
    if not resident.reuse:
        raise BadRequest(
            "Nothing is kept here, so there is nothing to warm",
            fix="start the server without --reuse-prompt off",
        )


def _only_one(prepared: list[Prepared]) -> tuple[Resident, Answer]:
    prompts = [answers for each in prepared for answers in each.prompts]
    if len(prompts) > 1:
        raise BadRequest(
            f"{len(prompts)} prompts are too many to explain", fix="send one at a time"
        )
    return prepared[0].resident, prompts[0][0]


def _look(engine: Engine, prompt: Prompt) -> tuple[Finding, tuple[str | None, ...]]:
    return engine.cache.look(prompt), kept_tiers(engine.cache, prompt)


def _bodies(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """One body, or those in `requests`."""
    if "requests" not in fields:
        return [fields]
    given = fields["requests"]
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise BadRequest("requests is no list of objects", fix="send bodies", param="requests")
    if not 0 < len(given) <= WARM_MAX:
        raise BadRequest(
            f"requests has {len(given)} entries", fix=f"send 1 to {WARM_MAX}", param="requests"
        )
    return given


def _idle(request: Work) -> Work:
    """Only to be read, and when nobody waits."""
    return replace(
        request, sampling=SamplingParams(), max_tokens=0, stop=(), priority=Priority.IDLE
    )

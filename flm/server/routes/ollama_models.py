"""GET /api/tags, /api/ps and /api/version, POST /api/show: the models, as Ollama tells of them.

Lemonade and chat apps poll the first to see whether a server is up. Agents read their window from
what /api/show calls `num_ctx`.
"""

import asyncio
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict

from flm import __version__
from flm.core.request import SamplingParams
from flm.engine.residency import Resident
from flm.errors import BadRequest
from flm.models.cards import Card
from flm.server.apis.bodies import Body
from flm.server.faults import valid
from flm.server.residence.embedders import Embedders
from flm.server.residence.residence import MustWait, Residence
from flm.server.routes.documented import documented
from flm.server.wire import Json, parse_object, read_body
from flm.settings import Settings
from flm.text.template import ChatTemplate

FOREVER = "9999-12-31T23:59:59Z"
# Ollama's words for what we call otherwise.
PARAMETERS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
    "penalty_window": "repeat_last_n",
}


class ShowBody(Body):
    """`name` is what older clients call it."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    name: str | None = None


def routes(settings: Settings, residence: Residence, embedders: Embedders) -> APIRouter:
    router = APIRouter()

    @router.get("/api/tags")
    @router.head("/api/tags", include_in_schema=False)
    async def tags() -> Response:
        """Ollama's list of what is installed."""
        return Json({"models": await asyncio.to_thread(_entries, residence)})

    @router.get("/api/ps")
    async def loaded() -> Response:
        """Ollama's list of what is loaded."""
        return Json({"models": _running(residence, embedders)})

    @router.post("/api/show", openapi_extra=documented(ShowBody))
    async def show(request: Request) -> Response:
        """What Ollama's clients ask of a model."""
        body = valid(ShowBody, parse_object(await read_body(request, settings)))
        name = body.model or body.name
        if not name:
            raise BadRequest("model is missing", fix="send model", param="model")
        return Json(await asyncio.to_thread(_shown_by_name, name, residence))

    @router.get("/api/version")
    @router.head("/api/version", include_in_schema=False)
    async def version() -> Response:
        """Which flm this is."""
        return Json({"version": __version__})

    return router


def _entries(residence: Residence) -> list[dict[str, Any]]:
    """What is loaded comes first."""
    resident, entries = residence.here, []
    if resident:
        entries = [_entry(resident) | {"modified_at": _moment(residence.settled_at)}]
    for each in residence.shelved():
        if resident is None or each.text != residence.text:
            entry = _named(each.card, each.size_bytes, each.card.sha256 or "")
            entries.append(entry | {"modified_at": _moment(each.installed_at)})
    return entries


def _running(residence: Residence, embedders: Embedders) -> list[dict[str, Any]]:
    running = []
    if resident := residence.here:
        size, window = resident.plan.needed - resident.plan.beside, resident.context_length
        running.append(_entry(resident) | _standing(residence.expires_at, size, window))
    for one, until in embedders.loaded:
        entry = _named(one.card, one.card.file_bytes, one.card.sha256 or "")
        running.append(entry | _standing(until, one.bytes, one.context_length))
    return running


def _standing(until: float | None, size_bytes: int, context_length: int) -> dict[str, Any]:
    return {
        "expires_at": FOREVER if until is None else _moment(until),
        "size": size_bytes,
        "size_vram": 0,
        "context_length": context_length,
    }


def _entry(resident: Resident) -> dict[str, Any]:
    card = resident.card
    return _named(card, card.file_bytes, card.sha256 or resident.bundle.key)


def _named(card: Card, size_bytes: int, digest: str) -> dict[str, Any]:
    return {
        "name": card.tag,
        "model": card.tag,
        "size": size_bytes,
        "digest": digest,
        "details": _details(card),
    }


def _details(card: Card) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "onnx",
        "family": card.family,
        "families": [card.family],
        "parameter_size": card.parameter_size,
        "quantization_level": card.quantization,
    }


def _shown_by_name(name: str, residence: Residence) -> dict[str, Any]:
    """Of a model that is not loaded it is not said how its chats are written."""
    try:
        resident = residence.find(name)
    except MustWait as must:
        one = must.found
        assert one, "found where it was looked for"
        told = _shown(one.card, one.context_length, one.card.family, None, sees=one.sees)
        return told | {"modified_at": _moment(one.installed_at)}
    architecture, window = resident.bundle.architecture, resident.context_length
    sees = resident.sight is not None
    told = _shown(resident.card, window, architecture, resident.template, sees=sees)
    return told | {"modified_at": _moment(residence.settled_at)}


def _shown(
    card: Card,
    context_length: int,
    architecture: str,
    template: ChatTemplate | None,
    *,
    sees: bool,
) -> dict[str, Any]:
    parameters = {"num_ctx": context_length, **_parameters(card.sampling)}
    lines = [f"{name} {value}" for name, value in parameters.items()]
    tools = template.tells_of_tools if template else "tool-calling" in card.labels
    return {
        "modelfile": "\n".join([f"FROM {card.tag}", *(f"PARAMETER {line}" for line in lines)]),
        "parameters": "\n".join(lines),
        "template": template.source if template else "",
        "details": _details(card),
        "model_info": {
            "general.architecture": architecture,
            "general.parameter_count": card.parameters,
            f"{architecture}.context_length": context_length,
        },
        "capabilities": _capabilities(card, tools=tools, sees=sees),
    }


def _capabilities(card: Card, *, tools: bool, sees: bool) -> list[str]:
    known = {
        "embedding": card.embeds,
        "completion": not card.embeds,
        "vision": sees,
        "tools": tools,
        "thinking": card.thinks or card.think_toggles,
    }
    return [name for name, has in known.items() if has]


def _parameters(sampling: SamplingParams) -> dict[str, object]:
    """Those that do something."""
    usual = SamplingParams()
    return {
        theirs: getattr(sampling, ours)
        for ours, theirs in PARAMETERS.items()
        if getattr(sampling, ours) != getattr(usual, ours)
    }


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()

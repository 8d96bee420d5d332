"""GET /api/tags, /api/ps and /api/version, POST /api/show: the models, as Ollama tells of them.

Lemonade and chat apps poll the first to see whether a server is up. Agents read their window from
what /api/show calls `num_ctx`.
"""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict

from flm import __version__
from flm.core.request import SamplingParams
from flm.engine.residency import Resident
from flm.errors import BadRequest
from flm.models.cards import Card
from flm.server.bodies import Body
from flm.server.documented import documented
from flm.server.faults import valid
from flm.server.residence import Residence
from flm.server.wire import Json, parse_object, read_body
from flm.settings import Settings

FOREVER = "9999-12-31T23:59:59Z"  # nothing unloads it
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


def routes(settings: Settings, residence: Residence) -> APIRouter:
    router = APIRouter()

    @router.get("/api/tags")
    @router.head("/api/tags", include_in_schema=False)
    async def tags() -> Response:
        resident = residence.resident
        entry = _entry(resident) | {"modified_at": _moment(residence.settled_at)}
        return Json({"models": [entry]})

    @router.get("/api/ps")
    async def loaded() -> Response:
        resident = residence.resident
        running = {
            "expires_at": FOREVER,
            "size": resident.plan.needed,
            "size_vram": 0,
            "context_length": resident.context_length,
        }
        return Json({"models": [_entry(resident) | running]})

    @router.post("/api/show", openapi_extra=documented(ShowBody))
    async def show(request: Request) -> Response:
        body = valid(ShowBody, parse_object(await read_body(request, settings)))
        name = body.model or body.name
        if not name:
            raise BadRequest("model is missing", fix="send model", param="model")
        resident = residence.find(name)
        return Json(_shown(resident) | {"modified_at": _moment(residence.settled_at)})

    @router.get("/api/version")
    @router.head("/api/version", include_in_schema=False)
    async def version() -> Response:
        return Json({"version": __version__})

    return router


def _entry(resident: Resident) -> dict[str, Any]:
    card = resident.card
    return {
        "name": card.tag,
        "model": card.tag,
        "size": card.file_bytes,
        "digest": card.sha256 or resident.bundle.key,
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


def _shown(resident: Resident) -> dict[str, Any]:
    card, architecture = resident.card, resident.bundle.architecture
    parameters = {"num_ctx": resident.context_length, **_parameters(card.sampling)}
    lines = [f"{name} {value}" for name, value in parameters.items()]
    return {
        "modelfile": "\n".join([f"FROM {card.tag}", *(f"PARAMETER {line}" for line in lines)]),
        "parameters": "\n".join(lines),
        "template": resident.template.source,
        "details": _details(card),
        "model_info": {
            "general.architecture": architecture,
            "general.parameter_count": card.parameters,
            f"{architecture}.context_length": resident.context_length,
        },
        "capabilities": _capabilities(resident),
    }


def _capabilities(resident: Resident) -> list[str]:
    card = resident.card
    known = {
        "completion": True,
        "tools": resident.template.tells_of_tools,
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


def _moment(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()

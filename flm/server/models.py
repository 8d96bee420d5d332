"""GET /v1/models: what is served, and the context length that agents size their prompts by."""

from typing import Any

from fastapi import APIRouter, Response

from flm.engine.residency import Resident
from flm.server.residence import Residence
from flm.server.wire import Json


def routes(residence: Residence) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models")
    async def models() -> Response:
        resident = residence.resident
        return Json({"object": "list", "data": [_entry(resident, residence.settled_at)]})

    @router.get("/v1/models/{model:path}")
    async def model(model: str) -> Response:
        return Json(_entry(residence.find(model), residence.settled_at))

    return router


def _entry(resident: Resident, created: int) -> dict[str, Any]:
    card = resident.card
    return {
        "id": card.tag,
        "object": "model",
        "created": created,
        "owned_by": "flm",
        # One number under the names that clients look for.
        "context_length": resident.context_length,
        "max_model_len": resident.context_length,
        "aliases": list(card.aliases),
        "labels": list(card.labels),
    }

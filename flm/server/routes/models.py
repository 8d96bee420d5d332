"""GET /v1/models: what may be asked for, and the context length that agents size prompts by."""

import asyncio
from typing import Any

from fastapi import APIRouter, Response

from flm.engine.residency import Resident
from flm.models.cards import VISION, Card
from flm.server.residence.residence import MustWait, Residence
from flm.server.wire import Json


def routes(residence: Residence) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models")
    async def models() -> Response:
        """What is installed, what is loaded first."""
        return Json({"object": "list", "data": await asyncio.to_thread(_entries, residence)})

    @router.get("/v1/models/{model:path}")
    async def model(model: str) -> Response:
        """One of them."""
        return Json(await asyncio.to_thread(_entry_of, residence, model))

    return router


def _entries(residence: Residence) -> list[dict[str, Any]]:
    """What is loaded comes first."""
    resident = residence.here
    others = [each for each in residence.shelved() if each.text != residence.text]
    entries = [
        _entry(each.card, each.context_length, each.installed_at, sees=each.sees) for each in others
    ]
    if resident is None:
        return entries
    since = residence.settled_at
    return [_loaded(resident, since), *entries]


def _entry_of(residence: Residence, model: str) -> dict[str, Any]:
    try:
        resident = residence.find(model)
    except MustWait as must:
        one = must.found
        assert one, "found where it was looked for"
        return _entry(one.card, one.context_length, one.installed_at, sees=one.sees)
    return _loaded(resident, residence.settled_at)


def _loaded(resident: Resident, since: int) -> dict[str, Any]:
    sees = resident.sight is not None
    return _entry(resident.card, resident.context_length, since, sees=sees, loaded=True)


def _entry(
    card: Card, context_length: int, created: int, *, sees: bool, loaded: bool = False
) -> dict[str, Any]:
    return {
        "id": card.tag,
        "object": "model",
        "created": created,
        "owned_by": "flm",
        # One number under the names that clients look for.
        "context_length": context_length,
        "max_model_len": context_length,
        "loaded": loaded,
        "aliases": list(card.aliases),
        "labels": [*card.labels, *([VISION] if sees else [])],
    }

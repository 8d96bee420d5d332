"""The two Ollama routes that Lemonade and chat apps poll to see whether a server is up."""

from datetime import UTC, datetime

from fastapi import APIRouter, Response

from flm import __version__
from flm.server.residence import Residence
from flm.server.wire import Json


def routes(residence: Residence) -> APIRouter:
    router = APIRouter()

    @router.get("/api/tags")
    async def tags() -> Response:
        card = residence.resident.card
        entry = {
            "name": card.tag,
            "model": card.tag,
            "modified_at": datetime.fromtimestamp(residence.settled_at, UTC).isoformat(),
            "size": card.file_bytes,
            "digest": card.sha256 or "",
            "details": {
                "parent_model": "",
                "format": "onnx",
                "family": card.family,
                "families": [card.family],
                "parameter_size": card.parameter_size,
                "quantization_level": card.quantization,
            },
        }
        return Json({"models": [entry]})

    @router.get("/api/version")
    async def version() -> Response:
        return Json({"version": __version__})

    return router

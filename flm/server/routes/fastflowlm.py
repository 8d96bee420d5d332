"""GET /api/npu/status and POST /api/cancel, as FastFlowLM's clients know them."""

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict

from flm.server.apis.bodies import Body
from flm.server.faults import valid
from flm.server.residence.residence import Residence
from flm.server.routes.documented import documented
from flm.server.running import Running
from flm.server.wire import Json, parse_object, read_body
from flm.settings import Settings


class CancelBody(Body):
    """The `request_id` that a request was sent with, or the `id` of its reply."""

    model_config = ConfigDict(extra="allow")

    request_id: str


def routes(settings: Settings, residence: Residence, running: Running) -> APIRouter:
    router = APIRouter()

    @router.get("/api/npu/status")
    async def status() -> Response:
        """`npu_available`: whether a request would begin at once, on whatever device it is."""
        resident = residence.here
        if resident is None:
            idle = {"npu_available": True, "active_requests": 0, "message": "no model is loaded"}
            return Json(idle)
        thread, lanes = resident.thread, resident.plan.lanes
        state = f"{thread.running} of {lanes} lanes in use, {thread.waiting} requests waiting"
        told = {
            "npu_available": thread.running < lanes and not thread.waiting,
            "active_requests": thread.running,
            "message": f"{resident.card.tag} on {resident.device.name}: {state}",
        }
        return Json(told)

    @router.post("/api/cancel", openapi_extra=documented(CancelBody))
    async def cancel(request: Request) -> Response:
        """Its client gets what there is of the reply."""
        body = valid(CancelBody, parse_object(await read_body(request, settings)))
        cancelled = running.cancel(body.request_id, key=request.state.api_key)
        message = "it ends now" if cancelled else "no request of this id is running"
        return Json({"cancelled": cancelled, "message": message})

    return router

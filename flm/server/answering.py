"""A request answered: admitted to the model that it names, run, and sent whole or as a stream."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fastapi import Request, Response
from starlette.background import BackgroundTask

from flm.engine.conversation import Conversations
from flm.errors import FlmError
from flm.server import journal
from flm.server.admission import Admission
from flm.server.generate import Generation
from flm.server.journal import CLIENT_CLOSED_REQUEST
from flm.server.leaving import ClientLeft
from flm.server.prepare import Prepared
from flm.server.reasons import note_reason
from flm.server.reporter import Reporter
from flm.server.residence.residence import MustWait, Residence
from flm.server.routes.metrics import Served
from flm.server.routes.news import News
from flm.server.running import Running
from flm.server.sse import EventStream, LateStream
from flm.server.wire import Json
from flm.settings import Settings

Prepare = Callable[[Mapping[str, Any], str | None], Prepared]


class Answering:
    def __init__(
        self,
        settings: Settings,
        residence: Residence,
        admission: Admission,
        served: Served,
        news: News,
        running: Running,
    ) -> None:
        self._settings = settings
        self._residence = residence
        self._admission = admission
        self._served = served
        self._news = news
        self._running = running

    async def answer(self, request: Request, prepare: Prepare, *, pings: bool = True) -> Response:
        """`pings`: a stream may have them before anything is known of its reply."""
        fields, key = await self._admission.fields(request), request.state.api_key
        work = partial(prepare, fields, key)
        if not fields.get("stream"):
            return await self._run(request, await self._admission.admitted(request, work))
        try:
            return await self._run(request, await self._admission.at_once(request, work))
        except MustWait as must:
            return self._late(request, must.text, work, pings=pings)

    def _late(
        self, request: Request, text: str, work: Callable[[], Prepared], *, pings: bool
    ) -> Response:
        async def coming() -> Response:
            return await self._run(request, await self._admission.in_turn(request, text, work))

        def failed(error: FlmError | None) -> None:
            if error:
                journal.note_refusal(request, error)
            else:
                journal.note_leaving(request)
            self._served.note(error.status if error else CLIENT_CLOSED_REQUEST)

        interval_s = self._settings.ping_interval_s if pings else None
        return LateStream(coming(), ping_interval_s=interval_s, failed=failed)

    async def _run(self, request: Request, prepared: Prepared) -> Response:
        body, replies, resident = prepared.body, prepared.replies, prepared.resident
        if body.keep_alive is not None:
            self._residence.keep_alive(body.kept_s)
        if prepared.told is not None:
            return Json(prepared.told)
        reporter = Reporter(self._news, resident, prepared.prompts[0][0].request)
        conversations = Conversations(resident)
        generation = Generation(conversations, prepared.prompts, admitted=reporter.admitted)
        request.state.guest.cut = generation.end
        names = [name for name in (replies.id, body.request_id) if name]
        self._running.name(generation, names, key=request.state.api_key)
        ended = partial(self._ended, request, prepared, generation, reporter)
        background = BackgroundTask(_read_ahead, generation)
        reporter.asked()
        if body.stream:
            return EventStream(
                generation,
                replies,
                ping_interval_s=self._settings.ping_interval_s,
                ended=ended,
                background=background,
            )
        try:
            async with generation.running(request.receive):
                while not generation.finished:
                    await generation.read()
        except ClientLeft as gone:
            ended(CLIENT_CLOSED_REQUEST, gone.ending)
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        ended(200, "")
        return Json(replies.whole(generation), background=background)

    def _ended(
        self,
        request: Request,
        prepared: Prepared,
        generation: Generation,
        reporter: Reporter,
        status: int,
        ending: str,
    ) -> None:
        resident, taken = prepared.resident, journal.account(generation, ending)
        priority = prepared.body.priority
        journal.note(request, status, taken, model=resident.card.tag, priority=priority)
        usages = [one.answer.usage for one in generation.choices if one.answer.usage]
        self._served.note(status, usages, priority)
        reporter.ended(status, taken)
        loop = asyncio.get_running_loop()
        for answers in generation.prompts:
            loop.run_in_executor(None, note_reason, resident, answers[0], reporter.explained)


async def _read_ahead(generation: Generation) -> None:
    try:
        await asyncio.to_thread(generation.read_ahead)
    except Exception as error:  # the client has its answer
        journal.note_mistake(error)

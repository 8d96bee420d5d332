"""The stream of one generation, in an API's own frames, with pings while there is nothing to say.

Headers go out at once, or with the first ping while another model is loaded; what fails later is
told inside the stream, which then ends.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from fastapi import Response
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from flm.errors import FlmError
from flm.server import journal
from flm.server.faults import fault_frame, fault_response, internal
from flm.server.generate import Choice, Generation
from flm.server.leaving import ClientLeft, ClientStalled, left
from flm.server.patience import STALL_S_MAX

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
PING = b": ping\n\n"  # a comment, in every dialect of events


class Replies(Protocol):
    """One request's replies as an API words them: in frames of a stream, or whole."""

    id: str

    @property
    def media_type(self) -> str: ...  # of a stream
    @property
    def ping(self) -> bytes: ...  # there is nothing to say yet
    def opening(self, choice: Choice) -> bytes: ...  # it has a lane
    def pieces(self, choice: Choice) -> bytes: ...  # what it has to say since
    def closing(self, choice: Choice, generation: Generation) -> bytes: ...  # it has ended
    def ending(self, generation: Generation) -> bytes: ...  # all have
    def failed(self, error: FlmError) -> bytes: ...  # and so has the stream
    def whole(self, generation: Generation) -> dict[str, Any]: ...


class EventStream(Response):
    """Runs the generation when it is sent, and cancels it when the client is gone."""

    def __init__(
        self,
        generation: Generation,
        replies: Replies,
        *,
        ping_interval_s: float,
        ended: Callable[[int, str], None],
        background: BackgroundTask,
    ) -> None:
        """`ended` is called once with the status and, if it did not end well, with how.

        `background` is for after a good end.
        """
        super().__init__(headers=HEADERS, media_type=replies.media_type, background=background)
        del self.headers["content-length"]
        self._generation = generation
        self._replies = replies
        self._ping_interval_s = ping_interval_s
        self._ended = ended
        self.begun = False  # whether its headers are sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, ending, started = 200, "cut off", self.begun
        try:
            async with self._generation.running(receive):
                if not started:
                    started = True
                    await send(start(self))
                await self._stream(send)
            ending = ""
        except ClientLeft as error:
            ending = error.ending
        except Exception as error:
            known = internal(error)
            status, ending = known.status, known.code or known.type
            if known is not error:
                journal.note_mistake(error)
            if started:
                with suppress(ClientStalled):
                    await send_piece(send, self._replies.failed(known), more=False)
            else:
                await fault_response(known, scope["path"])(scope, receive, send)
        finally:
            self._ended(status, ending)
        if self.background and not ending:
            await self.background()

    async def _stream(self, send: Send) -> None:
        generation, replies = self._generation, self._replies
        ping_at = time.monotonic() + self._ping_interval_s
        while not generation.finished:
            frames = b""
            for choice in await generation.read(ping_at - time.monotonic()):
                if not choice.opened:
                    choice.opened = True
                    frames += replies.opening(choice)
                frames += replies.pieces(choice)
                if choice.answer.finished:
                    frames += replies.closing(choice, generation)
            # Text that is held back sends nothing: the pings go by the clock, not by the tokens.
            if frames or time.monotonic() >= ping_at:
                await send_piece(send, frames or replies.ping)
                ping_at = time.monotonic() + self._ping_interval_s
        await send_piece(send, replies.ending(generation), more=False)


class LateStream(Response):
    """A stream that must wait for its model: pings, and then the response that is `coming`.

    Raises ClientDisconnect, and what went wrong while nothing was sent yet.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        coming: Coroutine[Any, Any, Response],
        *,
        ping_interval_s: float | None,
        failed: Callable[[FlmError | None], None],
    ) -> None:
        """`ping_interval_s` None: its dialect has no pings. `failed` is called with what had to be
        told inside the stream, or None for a client that left it.
        """
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._coming = coming
        self._ping_interval_s = ping_interval_s
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        coming, leaving = asyncio.create_task(self._coming), asyncio.create_task(left(receive))
        started = False
        try:
            while not coming.done():
                await asyncio.wait(
                    (coming, leaving),
                    timeout=self._ping_interval_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if leaving.done() and not coming.done():
                    raise ClientDisconnect
                if not coming.done():
                    if not started:
                        await send(start(self))
                    started = True
                    await send_piece(send, PING)
            response = coming.result()
        except (ClientDisconnect, ClientStalled):
            if not started:
                raise
            self._failed(None)
        except Exception as error:
            if not started:
                raise
            known = internal(error)
            self._failed(known)
            with suppress(ClientStalled):
                await send_piece(send, fault_frame(known, scope["path"]), more=False)
        else:
            if isinstance(response, EventStream):
                response.begun = started
            await response(scope, receive, send)
        finally:
            coming.cancel()
            leaving.cancel()


def start(response: Response) -> Message:
    """Its headers."""
    return {"type": "http.response.start", "status": 200, "headers": response.raw_headers}


async def send_piece(send: Send, body: bytes, *, more: bool = True) -> None:
    """Raises ClientStalled."""
    try:
        async with asyncio.timeout(STALL_S_MAX):
            await send({"type": "http.response.body", "body": body, "more_body": more})
    except TimeoutError as error:
        raise ClientStalled from error

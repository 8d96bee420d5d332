"""The stream of one generation, in an API's own frames, with pings while there is nothing to say.

Headers go out at once; what fails later is told inside the stream, which then ends.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from fastapi import Response
from starlette.background import BackgroundTask
from starlette.types import Receive, Scope, Send

from flm.errors import FlmError
from flm.server import journal
from flm.server.faults import fault_response, internal
from flm.server.generate import Choice, ClientLeft, ClientStalled, Generation
from flm.server.patience import STALL_S_MAX


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
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=replies.media_type, background=background)
        del self.headers["content-length"]
        self._generation = generation
        self._replies = replies
        self._ping_interval_s = ping_interval_s
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, ending, started = 200, "cut off", False
        try:
            async with self._generation.running(receive):
                started = True
                start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                await send(start)
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


async def send_piece(send: Send, body: bytes, *, more: bool = True) -> None:
    """Raises ClientStalled."""
    try:
        async with asyncio.timeout(STALL_S_MAX):
            await send({"type": "http.response.body", "body": body, "more_body": more})
    except TimeoutError as error:
        raise ClientStalled from error

"""GET /v1/events: what happens here, told as it happens to whoever listens.

Invariants:
  * A listener hears of its own domain alone, in order, and of no prompt's text unless it asks.
  * At most NEWS_BEHIND_MAX pieces wait for one that does not read; past it, it is let go.
  * While nobody listens nothing is written, and nobody is ever waited for.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any
from weakref import WeakSet

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from flm.engine.residency import Resident
from flm.engine.thread import EngineThread
from flm.errors import FlmError, QueueFull
from flm.prefix.moves import Move
from flm.server.domains import SALT, domain_asked
from flm.server.leaving import ClientStalled, left
from flm.server.residence.residence import Residence
from flm.server.routes.documented import query
from flm.server.routes.prefix_cache import text_asked
from flm.server.sse import HEADERS, PING, send_piece, start
from flm.server.wire import event
from flm.settings import Settings

NEWS_BEHIND_MAX = 512
LISTENERS_MAX = 32  # at once, of all clients
RETRY_MS = 2000  # before a listener that was let go comes again
TEXT = query("text", "1: with the text around what differs, where a prompt is explained")


class Listener:
    """One who listens, on the event loop that it was made on."""

    def __init__(self, domain: str, *, text: bool) -> None:
        self.domain = domain
        self.text = text
        self.over = False  # it left, or was let go
        self._waiting: deque[bytes] = deque()
        self._ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def hear(self, piece: bytes) -> None:
        """On any thread."""
        self._waiting.append(piece)
        if len(self._waiting) > NEWS_BEHIND_MAX:
            self._waiting.clear()
            self.over = True
        self._stir()

    def end(self) -> None:
        """On any thread."""
        self.over = True
        self._stir()

    async def pieces(self, wait_s: float) -> bytes:
        """What came since; nothing if that is how it was for `wait_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._ready.wait()
        self._ready.clear()
        taken = bytearray()
        while self._waiting:
            taken += self._waiting.popleft()
        return bytes(taken)

    def _stir(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
            self._loop.call_soon_threadsafe(self._ready.set)


class News:
    """Any thread may tell."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._followed: WeakSet[EngineThread] = WeakSet()
        self._lock = Lock()

    def tell(
        self,
        domain: str,
        what: str,
        fields: Mapping[str, Any],
        text: Mapping[str, Any] | None = None,
    ) -> None:
        """`text` is a prompt's, and for those who ask for it."""
        with self._lock:
            for listener in self._listeners:
                if listener.domain == domain and not listener.over:
                    said = {**fields, **(text or {})} if listener.text else fields
                    listener.hear(event(what, said))

    def follow(self, resident: Resident) -> None:
        """Tell of what its cache keeps and gives up, from now on."""
        thread, tag = resident.thread, resident.card.tag
        if thread in self._followed:
            return
        self._followed.add(thread)

        def moved(move: Move) -> None:
            if self._listeners:
                self.tell(move.domain, move.what.value, _move(move, tag))

        with suppress(FlmError):  # it is being unloaded
            thread.ask(lambda engine: setattr(engine.cache, "watch", moved))

    @contextmanager
    def heard(self, listener: Listener) -> Iterator[None]:
        """Raises QueueFull."""
        with self._lock:
            if len(self._listeners) >= LISTENERS_MAX:
                raise QueueFull(
                    f"{LISTENERS_MAX} listen to this server already", fix="close a page of it"
                )
            self._listeners.add(listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def close(self) -> None:
        """The server is stopping: nobody has to wait for those who only listen."""
        with self._lock:
            for listener in self._listeners:
                listener.end()


class NewsStream(Response):
    """Until the listener leaves or is let go."""

    media_type = "text/event-stream"

    def __init__(self, news: News, listener: Listener, *, ping_interval_s: float) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._news = news
        self._listener = listener
        self._ping_interval_s = ping_interval_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        listener = self._listener
        with self._news.heard(listener), suppress(ClientStalled):
            watch = asyncio.create_task(_until_left(receive, listener))
            try:
                await send(start(self))
                await send_piece(send, b"retry: %d\n\n" % RETRY_MS)
                while not listener.over:
                    await send_piece(send, await listener.pieces(self._ping_interval_s) or PING)
                await send_piece(send, b"", more=False)
            finally:
                watch.cancel()


def routes(settings: Settings, residence: Residence, news: News) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/events", openapi_extra={"parameters": [TEXT, SALT]})
    async def listen(request: Request) -> Response:
        """What happens to requests and kept prompts, as server-sent events."""
        with suppress(FlmError):  # it loads still: the first request that runs will do
            news.follow(residence.resident)
        listener = Listener(domain_asked(request, settings), text=text_asked(request))
        return NewsStream(news, listener, ping_interval_s=settings.ping_interval_s)

    return router


def _move(move: Move, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "kind": move.kind.value,
        "offset": move.offset,
        "bytes_kept": move.bytes_kept,
    }


async def _until_left(receive: Receive, listener: Listener) -> None:
    await left(receive)
    listener.end()

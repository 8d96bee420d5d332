"""From settings to a listening socket and back: bind, load, answer, stop."""

import asyncio
import errno
import json
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from flm import console
from flm.core.sizes import counted
from flm.engine.beside import Beside
from flm.engine.residency import Resident
from flm.engine.thread import FLUSH_S_MAX
from flm.errors import ModelLoading, ServerAddressInUse, ServerStopping
from flm.server.app import create_app
from flm.server.guard import is_loopback_name
from flm.server.residence.apart import apart
from flm.server.residence.residence import Prepare, Residence
from flm.server.stopping import Stopping
from flm.settings import Settings

if TYPE_CHECKING:
    import uvicorn

FAREWELL_S_MAX = 2  # for what was said last to be taken, once the server stops
ASK_S_MAX, ANSWER_BYTES_MAX = 1.0, 4096  # who it is that has the port
BACKLOG_MAX = 1024  # connections not yet accepted
IDLE_S_MAX = 75  # a connection without a request; clients' pools expect about a minute

Load = tuple[str, Callable[[], Resident]]  # the first model: its name, and how to load it


def run_server(
    settings: Settings,
    load: Load | None,
    *,
    prepare: Prepare | None = None,
    ready: Callable[[Resident | None], None] = lambda resident: None,
    beside: Beside | None = None,
) -> None:
    """Listens, loads while /health says 503, then serves until SIGINT or SIGTERM.

    A second signal does not wait for running requests. `load` None: the first request says which
    model. `prepare`: how others are loaded, when asked for. `beside`: what both plan with. Raises
    ServerAddressInUse, and whatever `load` raises.
    """
    with listen(settings.host, settings.port) as listener:
        if not (settings.api_keys or is_loopback_name(settings.host)):
            console.warn(
                f"Anyone who reaches {settings.host} can use this server: set a key with --api-key."
            )
        asyncio.run(_serve(settings, listener, Residence(settings, prepare, beside), load, ready))


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections, answered once there is a server.

    Raises ServerAddressInUse.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, port, error, "") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG_MAX)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error, str(address[0])) from error
    return listener


def create_server(app: FastAPI, settings: Settings) -> "uvicorn.Server":
    """uvicorn around the app, silent; signals are not its business. Once it is to stop it waits for
    replies, and not for those who only listen.
    """
    import uvicorn

    from flm.server.patience import HEAD_BYTES_MAX, patient_protocol

    class Server(uvicorn.Server):
        def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
            return nullcontext()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.news.close()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        http=patient_protocol(settings.upload_s_max),
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        backlog=BACKLOG_MAX,
        server_header=False,
        timeout_keep_alive=IDLE_S_MAX,
        timeout_graceful_shutdown=FAREWELL_S_MAX,
    )
    return Server(config)


async def _serve(
    settings: Settings,
    listener: socket.socket,
    residence: Residence,
    load: Load | None,
    ready: Callable[[Resident | None], None],
) -> None:
    server, stopping = create_server(create_app(settings, residence), settings), Stopping()
    with stopping.listening():
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        told = asyncio.create_task(stopping.told.wait())
        try:
            if await _opened(residence, load, (serving, told)):
                ready(residence.here)
                await asyncio.wait((serving, told), return_when=asyncio.FIRST_COMPLETED)
            await _drain(residence, stopping, settings.drain_s)
        finally:
            told.cancel()
            server.should_exit, server.force_exit = True, stopping.hurried.is_set()
            await serving
        await residence.close(FLUSH_S_MAX, stopping.hurried)


async def _opened(
    residence: Residence, load: Load | None, ended: "tuple[asyncio.Task[Any], ...]"
) -> bool:
    """Once the first model is loaded, if one is wanted; False if the server has ended by then."""
    if load is None:
        residence.open_empty()
        return True
    text, work = load
    loading = apart(work, name="load")
    await asyncio.wait((loading, *ended), return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():  # the thread ends with the process
        return False
    residence.settle(loading.result(), text)
    return True


async def _drain(residence: Residence, stopping: Stopping, drain_s: float) -> None:
    """Who is being answered gets so long; then, or when told again, they are cut off."""
    running = residence.stop()
    console.say(
        f"Stopping: {counted(running, 'request')} may take {drain_s:g} s more to end "
        "(once more, and they are cut off)"
        if running
        else "Stopping"
    )
    ways = [
        asyncio.create_task(residence.emptied()),
        asyncio.create_task(stopping.hurried.wait()),
    ]
    await asyncio.wait(ways, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
    for way in ways:
        way.cancel()
    residence.cut()


def _cannot_listen(host: str, port: int, error: OSError, address: str) -> ServerAddressInUse:
    if error.errno == errno.EADDRINUSE:
        return ServerAddressInUse(
            f"Port {port} of {host} is taken by {_who_listens(address, port)}",
            fix=f"stop it, or try flm serve --port {port + 1}",
        )
    return ServerAddressInUse(
        f"Cannot listen on {host} port {port}: {error.strerror or error}",
        fix="choose an address of this machine with --host, and a --port above 1023",
    )


def _who_listens(address: str, port: int) -> str:
    """Another flm says so itself, and with which model."""
    connection = HTTPConnection(address, port, timeout=ASK_S_MAX)
    try:
        connection.request("GET", "/health", headers={"Host": "localhost"})
        told = json.loads(connection.getresponse().read(ANSWER_BYTES_MAX))
    except (OSError, HTTPException, ValueError, RecursionError):
        return "another program"
    finally:
        connection.close()
    match told:
        case {"status": "ok", "model": str(model), **rest} if not rest:
            return f"another flm, which serves {model}"
        case {"status": "ok", "model": None, **rest} if not rest:
            return "another flm, which has no model loaded"
        case {"error": {"code": ModelLoading.code | ServerStopping.code}}:
            return "another flm"
    return "another program"

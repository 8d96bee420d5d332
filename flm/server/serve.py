"""From settings to a listening socket and back: bind, load, answer, stop."""

import asyncio
import errno
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from flm import console
from flm.engine.residency import Resident
from flm.errors import ServerAddressInUse
from flm.server.app import create_app
from flm.server.guard import is_loopback_name
from flm.server.residence import Residence
from flm.settings import Settings

if TYPE_CHECKING:
    import uvicorn

DRAIN_S_MAX = 10  # what running requests get once the server is told to stop
BACKLOG_MAX = 1024  # connections not yet accepted
IDLE_S_MAX = 75  # a connection without a request; clients' pools expect about a minute


def run_server(
    settings: Settings,
    load: Callable[[], Resident],
    *,
    ready: Callable[[Resident], None] = lambda resident: None,
) -> None:
    """Listens, loads while /health says 503, then serves until SIGINT or SIGTERM.

    A second signal does not wait for running requests. `load` and `ready` run beside the event
    loop. Raises ServerAddressInUse, and whatever `load` raises.
    """
    with listen(settings.host, settings.port) as listener:
        if not (settings.api_keys or is_loopback_name(settings.host)):
            console.warn(
                f"Anyone who reaches {settings.host} can use this server: set a key with --api-key."
            )
        asyncio.run(_serve(settings, listener, load, ready))


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
        raise _cannot_listen(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG_MAX)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def create_server(app: FastAPI, settings: Settings) -> "uvicorn.Server":
    """uvicorn around the app, silent, and without its signal sent on to us afterwards. Once it is
    told to stop it waits for replies, and not for those who only listen.
    """
    import uvicorn

    from flm.server.patience import patient_protocol

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            self.force_exit = self.should_exit  # the second time
            self.should_exit = True

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.news.close()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        http=patient_protocol(settings.upload_s_max),
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        backlog=BACKLOG_MAX,
        server_header=False,
        timeout_keep_alive=IDLE_S_MAX,
        timeout_graceful_shutdown=DRAIN_S_MAX,
    )
    return Server(config)


async def _serve(
    settings: Settings,
    listener: socket.socket,
    load: Callable[[], Resident],
    ready: Callable[[Resident], None],
) -> None:
    residence = Residence()
    server = create_server(create_app(settings, residence), settings)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    loading = _in_thread(load)
    first: tuple[asyncio.Future[Any], ...] = (serving, loading)
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():  # told to stop; the thread ends with the process
        return
    try:
        resident = loading.result()
        residence.settle(resident)
        ready(resident)
        await serving
        resident.close()
    finally:
        server.should_exit = True
        await serving


def _in_thread(load: Callable[[], Resident]) -> "asyncio.Future[Resident]":
    """Not in the loop's pool, which would be waited for when the server is told to stop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Resident] = loop.create_future()

    def settle(outcome: Resident | BaseException) -> None:
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def run() -> None:
        try:
            outcome: Resident | BaseException = load()
        except BaseException as error:
            outcome = error
        loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, name="load", daemon=True).start()
    return future


def _cannot_listen(host: str, port: int, error: OSError) -> ServerAddressInUse:
    if error.errno == errno.EADDRINUSE:
        return ServerAddressInUse(
            f"Port {port} of {host} is taken by another program",
            fix=f"stop it, or try flm serve --port {port + 1}",
        )
    return ServerAddressInUse(
        f"Cannot listen on {host} port {port}: {error.strerror or error}",
        fix="choose an address of this machine with --host, and a --port above 1023",
    )

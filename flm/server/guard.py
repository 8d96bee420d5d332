"""Who may come in: a plain ASGI layer before everything else.

In this order: room for one more, the Host header (DNS rebinding), the Origin header (web pages),
the key. A native client sends no Origin and is not asked for one.
"""

import asyncio
import hmac
import ipaddress
import re
import socket
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flm.errors import (
    FlmError,
    HostNotAllowed,
    OriginNotAllowed,
    QueueFull,
    ServerStopping,
    Unauthorized,
)
from flm.server.faults import fault_response
from flm.server.routes.front import asks_for_page
from flm.settings import Settings

LOCAL_SUFFIXES = (".localhost", ".local", ".internal")
# Schemes of desktop shells and browser extensions: no web site can claim them.
APP_SCHEMES = {
    "app",
    "file",
    "tauri",
    "vscode-webview",
    "chrome-extension",
    "moz-extension",
    "capacitor",
}
PREFLIGHT_AGE_S = 600


class Guard:
    """Wraps an app; `open_requests` counts what is being answered.

    The app finds the API key that opened, None without one, as `api_key` in the scope's state.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._keys = settings.api_keys
        self._hosts = {socket.gethostname().lower(), *map(str.lower, settings.allowed_hosts)}
        self.open_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {
            key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]
        }
        self.open_requests += 1
        try:
            shared = self._cors_headers(headers)
            if shared:
                send = _with_headers(send, shared)
            key = self._key(headers)
            refusal = self._refusal(scope, headers, key)
            if refusal is not None:
                await fault_response(refusal, scope["path"])(scope, receive, send)
            elif self._is_preflight(scope):
                await send({"type": "http.response.start", "status": 204, "headers": []})
                await send({"type": "http.response.body", "body": b""})
            else:
                scope.setdefault("state", {})["api_key"] = key
                await self._answer(scope, receive, send)
        finally:
            self.open_requests -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """By the app. Whoever has none as the server ends, and only then cancels, is told so."""
        begun = False

        async def send_on(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        except asyncio.CancelledError:
            if not begun:
                stopping = ServerStopping("The server is stopping", fix="ask again once it is back")
                await fault_response(stopping, scope["path"])(scope, receive, send)
            raise

    def _is_preflight(self, scope: Scope) -> bool:
        return self._settings.cors and scope["method"] == "OPTIONS"

    def _refusal(self, scope: Scope, headers: dict[str, str], key: str | None) -> FlmError | None:
        limit = self._settings.connections_max
        if self.open_requests > limit:
            return QueueFull(
                f"{limit:,} requests are open already", fix="wait, or start with a larger --socket"
            )
        host = headers.get("host")
        if host is not None and not self._knows_host(host):
            return HostNotAllowed(
                f"The Host header names {host!r}, which is not this server",
                fix="call it by IP address or as localhost, or start it with --allowed-hosts NAME",
            )
        origin = headers.get("origin")
        if origin is not None and not self._knows_origin(origin, host):
            return OriginNotAllowed(
                f"Web pages of {origin!r} may not use this server",
                fix=f"start it with --cors-origins {origin}",
            )
        method, path = scope["method"], scope["path"]
        page = asks_for_page(method, path, headers.get("accept", ""))
        open_to_all = page or method == "OPTIONS" or path == "/health"
        if open_to_all or key is not None or not self._keys:
            return None
        return Unauthorized(
            "The API key is missing or wrong",
            fix="send the server's --api-key as Authorization: Bearer KEY",
        )

    def _key(self, headers: dict[str, str]) -> str | None:
        """Which of ours the client sent."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else ""
        given = [key.encode("latin-1") for key in (bearer, headers.get("x-api-key", ""))]
        # All are compared, whatever the outcome: time tells nothing about a key.
        matches = [
            key for key in self._keys for one in given if hmac.compare_digest(key.encode(), one)
        ]
        return matches[0] if matches else None

    def _knows_host(self, host: str) -> bool:
        name = host_name(host)
        return is_local_name(name) or name in self._hosts or "*" in self._hosts

    def _knows_origin(self, origin: str, host: str | None) -> bool:
        """Local pages, desktop shells, our own pages and `--cors-origins`."""
        allowed = self._settings.cors_origins
        if "*" in allowed or origin in allowed:
            return True
        try:
            url = urlsplit(origin)
            name = url.hostname or ""
        except ValueError:
            return False
        if url.scheme in APP_SCHEMES:
            return True
        return url.scheme in ("http", "https") and (is_loopback_name(name) or url.netloc == host)

    def _cors_headers(self, headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
        """For an allowed origin. What it asks to send is echoed, since clients add their own."""
        origin = headers.get("origin")
        if not self._settings.cors or origin is None:
            return []
        vary = [(b"vary", b"Origin")]
        if not self._knows_origin(origin, headers.get("host")):
            return vary
        wanted = headers.get("access-control-request-headers", "*")
        answer = {
            "access-control-allow-origin": origin,
            "access-control-allow-methods": "GET, HEAD, POST, OPTIONS",
            "access-control-allow-headers": wanted,
            "access-control-allow-private-network": "true",
            "access-control-max-age": str(PREFLIGHT_AGE_S),
        }
        return vary + [(key.encode(), value.encode("latin-1")) for key, value in answer.items()]


def host_name(host: str) -> str:
    """The name in a Host header: without port, brackets and the root's dot, in lower case."""
    bracketed = re.fullmatch(r"\[([^\]]*)\](:\d*)?", host)
    name = bracketed[1] if bracketed else host.partition(":")[0]
    return name.removesuffix(".").lower()


def is_local_name(name: str) -> bool:
    """Names and addresses that no name server outside this network can point at us."""
    if not name:
        return False
    try:
        return not ipaddress.ip_address(name).is_global
    except ValueError:
        return "." not in name or name.endswith(LOCAL_SUFFIXES)


def is_loopback_name(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _with_headers(send: Send, extra: list[tuple[bytes, bytes]]) -> Send:
    async def send_with(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *extra]
        await send(message)

    return send_with

"""A running server, asked over HTTP."""

import json
from collections.abc import Mapping
from typing import Any

from flm.errors import BadRequest, FlmError, NoServer
from flm.settings import Settings, variable

TIMEOUT_S = 60.0
WHERE = f"Its port: --port N or {variable('port')}=N; another machine: --host NAME"


def server_url(settings: Settings) -> str:
    """Where a client on this machine finds the server of these settings."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "") else settings.host
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{settings.port}"


def ask(
    settings: Settings, method: str, path: str, body: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The JSON object that it answers. Raises NoServer, and what the server refuses."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, Request, build_opener

    url = server_url(settings)
    headers = {"Content-Type": "application/json"}
    if settings.api_keys:
        headers["Authorization"] = f"Bearer {settings.api_keys[0]}"
    data = None if body is None else json.dumps(body).encode()
    request = Request(url + path, data, headers, method=method)
    try:
        # A proxy for the web is none for this machine.
        with build_opener(ProxyHandler({})).open(request, timeout=TIMEOUT_S) as response:
            return _parsed(response.read(), url)
    except HTTPError as error:
        raise _refusal(_parsed(error.read(), url), url) from error
    except (OSError, HTTPException) as error:
        raise NoServer(
            f"No flm server answers at {url}",
            fix=f"start one with flm serve, or say where it is. {WHERE}",
        ) from error


def _parsed(raw: bytes, url: str) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise NoServer(f"What answers at {url} is not flm", fix=WHERE)
    return value


def _refusal(reply: Mapping[str, Any], url: str) -> FlmError:
    error = reply.get("error")
    if not isinstance(error, dict):
        return NoServer(f"What answers at {url} is not flm", fix=WHERE)
    message = str(error.get("message")).partition(". Fix: ")[0]
    return BadRequest(message, fix=str(error.get("fix") or "see the server's log"))

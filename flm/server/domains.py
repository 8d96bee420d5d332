"""Whose kept prompts a request may begin with: those of its own domain, and no others.

How fast a prompt is read tells whether it was read before, so nobody is to learn that of others.
"""

import hashlib
import json

from fastapi import Request

from flm.errors import BadRequest
from flm.server.apis.bodies import SALT_CHARS_MAX
from flm.server.routes.documented import query
from flm.settings import Settings

SALT = query("cache_salt", "as in the requests whose prompts are meant")


def domain_of(key: str | None, salt: str | None, *, shared: bool) -> str:
    """Of a client's API key and of what the request salts it with.

    "" for a server without keys and a request without salt. Otherwise a digest of both, each in its
    place, so that no key and salt give the domain of another key and salt.
    """
    parts = [None if shared else key, salt]
    if parts == [None, None]:
        return ""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def owner_of(key: str | None) -> str:
    """Who asks, as far as keys tell."""
    return "" if key is None else domain_of(key, None, shared=False)


def domain_asked(request: Request, settings: Settings) -> str:
    """The domain that a request without a body is about. Raises BadRequest."""
    salt = request.query_params.get("cache_salt")
    if salt is not None and not 0 < len(salt) <= SALT_CHARS_MAX:
        raise BadRequest(
            f"cache_salt has {len(salt)} characters",
            fix=f"send 1 to {SALT_CHARS_MAX}, or none",
            param="cache_salt",
        )
    return domain_of(request.state.api_key, salt, shared=settings.prefix_shared)

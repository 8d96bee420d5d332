"""Whose kept prompts a request may begin with: those of its own domain, and no others.

How fast a prompt is read tells whether it was read before, so nobody is to learn that of others.
"""

import hashlib
import json


def domain_of(key: str | None, salt: str | None, *, shared: bool) -> str:
    """Of a client's API key and of what the request salts it with.

    "" for a server without keys and a request without salt. Otherwise a digest of both, each in its
    place, so that no key and salt give the domain of another key and salt.
    """
    parts = [None if shared else key, salt]
    if parts == [None, None]:
        return ""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

"""JSON in and out: bodies are read within bounds and strictly, replies are plain ASCII."""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from fastapi import Request, Response

from flm.errors import BadRequest, BodyTooLarge, RequestTimeout
from flm.settings import Settings

DEPTH_MAX = 128  # lists and objects inside each other; tool schemas in the wild stay below 30

# Half a surrogate pair: what a client that cut an emoji in two sends.
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


class Json(Response):
    """ASCII on the wire, so that no text a client sent can fail to be sent back."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encode(content)


def encode(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode("ascii")


def event(name: str, said: Any) -> bytes:
    """One of a stream of events (SSE), as JSON."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(said))


def too_slow(upload_s_max: float, what: str) -> RequestTimeout:
    return RequestTimeout(
        f"The request's {what} took more than {upload_s_max:g} s to arrive",
        fix="send it faster, or raise upload-s-max in flm.toml",
    )


async def read_body(request: Request, settings: Settings) -> bytes:
    """The body as it streams in.

    Raises BodyTooLarge as soon as it is known to be, RequestTimeout, BadRequest when it is packed.
    """
    bytes_max = settings.body_bytes_max
    coding = request.headers.get("content-encoding", "identity")
    if coding.strip().lower() not in ("", "identity"):
        raise BadRequest(
            f"The body's Content-Encoding is {coding!r:.40}, which is not read here",
            fix="send the body as it is, without Content-Encoding",
        )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > bytes_max:
        raise _too_large(bytes_max)
    body = bytearray()
    try:
        async with asyncio.timeout(settings.upload_s_max):
            async for piece in request.stream():
                body += piece
                if len(body) > bytes_max:
                    raise _too_large(bytes_max)
    except TimeoutError as error:
        raise too_slow(settings.upload_s_max, "body") from error
    return bytes(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body, whatever its content type says. Raises BadRequest.

    Half surrogate pairs become U+FFFD, since no tokenizer takes them.
    """
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise _malformed(f"byte {error.start} is not UTF-8") from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise _malformed(str(error)) from error
    if not isinstance(value, dict):
        raise _malformed(f"it is a {type(value).__name__}, not an object")
    _check_depth(value)
    return _mended(value) if _HALF.search(body) else value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH_MAX):
        children = (parent.values() if isinstance(parent, dict) else parent for parent in level)
        level = [child for each in children for child in each if isinstance(child, dict | list)]
        if not level:
            return
    raise _too_deep()


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, Mapping):
        return {_mended(key): _mended(child) for key, child in value.items()}
    return [_mended(child) for child in value] if isinstance(value, list) else value


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number JSON knows")


def _malformed(reason: str) -> BadRequest:
    return BadRequest(f"The body is not a JSON object: {reason}.", fix="send one JSON object")


def _too_deep() -> BadRequest:
    return BadRequest(
        f"The body nests lists and objects more than {DEPTH_MAX} deep.", fix="send flatter JSON"
    )


def _too_large(bytes_max: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The body is larger than {bytes_max:,} bytes.",
        fix="send less, or raise body-bytes-max in flm.toml",
    )

"""Errors as clients read them: a status, and an object that says what to do.

It is OpenAI's, or Anthropic's or Ollama's where the path is one of theirs.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from flm.errors import (
    BadRequest,
    FlmError,
    PromptTooLong,
    RequestTimeout,
)
from flm.server.wire import Json, encode, event

ModelT = TypeVar("ModelT", bound=BaseModel)

SHOWN_CHARS_MAX = 80  # of a refused value
MESSAGES = "/v1/messages"
OLLAMA = "/api"  # and FastFlowLM's own
TYPES = {  # Anthropic's words, by status
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def fault(error: FlmError) -> dict[str, Any]:
    """`{"error": ...}`. The context length message stands alone: clients parse its wording."""
    inner: dict[str, Any] = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
        "fix": error.fix,
    }
    if isinstance(error, PromptTooLong):
        inner |= {"n_prompt_tokens": error.prompt_tokens, "n_ctx": error.context_length}
    else:
        inner["message"] = _with_fix(error)
    return {"error": inner}


def message_fault(error: FlmError) -> dict[str, Any]:
    """Anthropic's. Its clients know by the wording that a conversation is to be made shorter."""
    message = _with_fix(error)
    if isinstance(error, PromptTooLong):
        tokens = f"{error.prompt_tokens} tokens > {error.context_length} maximum"
        message = f"prompt is too long: {tokens}"
    usual = "api_error" if error.status >= 500 else "invalid_request_error"
    inner = {"type": TYPES.get(error.status, usual), "message": message}
    return {"type": "error", "error": inner, "request_id": None}


def plain_fault(error: FlmError) -> dict[str, Any]:
    """Ollama's: a text."""
    return {"error": _with_fix(error)}


def fault_response(
    error: FlmError, path: str = "", headers: Mapping[str, str] | None = None
) -> Json:
    """In the words of whoever asks for `path`."""
    headers = dict(headers or {})
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, RequestTimeout):  # its end may still come, and would be read as a head
        headers["Connection"] = "close"
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Json(_worded(path)(error), status_code=error.status, headers=headers)


def fault_frame(error: FlmError, path: str) -> bytes:
    """The same inside a stream of events, of which nothing else was said yet."""
    words = _worded(path)
    if words is message_fault:
        return event("error", words(error))
    return b"data: %b\n\n" % encode(words(error))


def internal(error: BaseException) -> FlmError:
    """What a client may know of a bug of ours: that it is one."""
    if isinstance(error, FlmError):
        return error
    return FlmError("The server failed on this request", fix="see its log; other requests go on")


def valid(kind: type[ModelT], fields: Mapping[str, Any]) -> ModelT:
    """The body that the fields of one make. Raises BadRequest."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _not_valid(error, fields) from error


def _not_valid(error: ValidationError, body: Mapping[str, Any]) -> BadRequest:
    """The first thing wrong with a body: which field, what it should be and what it is."""
    details = error.errors(include_url=False)
    first = _place(details[0]["loc"], body)
    wanted = [d["msg"] for d in details if _place(d["loc"], body) == first]
    shown = repr(details[0]["input"])
    if len(shown) > SHOWN_CHARS_MAX:
        shown = shown[:SHOWN_CHARS_MAX] + "…"
    if details[0]["type"] == "missing":
        return BadRequest(f"{first} is missing", fix=f"send {first}", param=first)
    what = " or ".join(dict.fromkeys(word[0].lower() + word[1:] for word in wanted))
    return BadRequest(f"{first} is {shown}: {what}", fix=f"change {first}", param=first)


def _worded(path: str) -> Callable[[FlmError], dict[str, Any]]:
    for root, words in ((MESSAGES, message_fault), (OLLAMA, plain_fault)):
        if path == root or path.startswith(f"{root}/"):
            return words
    return fault


def _with_fix(error: FlmError) -> str:
    return f"{error.message.rstrip('.')}. Fix: {error.fix}." if error.fix else error.message


def _place(loc: tuple[int | str, ...], body: Mapping[str, Any]) -> str:
    """`messages[2].content`: the path as far as the body has it, without pydantic's own words."""
    place, here = "", body
    for step in loc:
        inside: Any = None
        if isinstance(here, Mapping) and isinstance(step, str):
            inside = here.get(step)
            place += f".{step}" if place else step
        elif isinstance(here, list) and isinstance(step, int):
            inside = here[step]
            place += f"[{step}]"
        if inside is None:
            break
        here = inside
    return place

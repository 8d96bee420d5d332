"""One line in the log for each request that asks for work. Never a word of a prompt."""

import re
import traceback
from collections.abc import Mapping
from typing import Any

from fastapi import Request

from flm import console
from flm.core.request import Priority
from flm.errors import FlmError
from flm.server.generate import Generation
from flm.server.leaving import ClientLeft

CLIENT_CLOSED_REQUEST = 499  # nginx's word for it; nobody sees it but the log


def account(generation: Generation, ending: str) -> dict[str, Any]:
    """What a request took and how it ended. `ending`: if not by itself."""
    first = generation.choices[0].answer
    usage, usages = first.spent, [choice.answer.spent for choice in generation.choices]
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "tier": usage.tier,
        "kind": usage.kind,
        "completion_tokens": sum(each.completion_tokens for each in usages),
        "wait_s": usage.queue_s,
        "first_s": usage.queue_s + usage.prefill_s,
        "read_s": usage.prefill_s,
        "write_s": usage.decode_s,
        "ending": ending or (first.reason.value if first.reason else ""),
        "request_id": first.request.id,
    }


def note(
    request: Request, status: int, taken: Mapping[str, Any], *, model: str, priority: Priority
) -> None:
    """`taken`: its account. A class that is not the usual one stands behind the model's name."""
    if priority is not Priority.INTERACTIVE:
        model = f"{model}@{priority.value}"
    console.request(
        method=request.method, path=request.scope["path"], model=model, status=status, **taken
    )


def note_refusal(request: Request, error: FlmError) -> None:
    """Its code and the field at fault: below that, names are the client's own words."""
    field = re.match(r"\w*", error.param or "")
    console.request(
        method=request.method,
        path=request.scope["path"],
        status=error.status,
        ending=f"{error.code or error.type} {field[0] if field else ''}".rstrip(),
    )


def note_leaving(request: Request) -> None:
    """Of a client that was gone before it had asked for anything."""
    console.request(
        method=request.method,
        path=request.scope["path"],
        status=CLIENT_CLOSED_REQUEST,
        ending=ClientLeft.ending,
    )


def note_mistake(error: BaseException) -> None:
    """One of ours, with where it was made."""
    console.fail("".join(traceback.format_exception(error)).rstrip())

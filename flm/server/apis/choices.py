"""What a reply has to be, as clients say it: which tools are called, and what its content is.

What is asked for is held to or refused by name, never passed over.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flm.engine.terms import ANY_TOOL
from flm.errors import BadRequest
from flm.server.apis.bodies import not_supported
from flm.text.constraint import Format

ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """As `Terms` have it."""

    tool_calls: bool = True
    must_call: tuple[str, ...] | None = None
    calls_max: int | None = None


def tool_choice(given: object, *, parallel: bool = True) -> ToolChoice:
    """OpenAI's, of both its APIs, and Anthropic's. `parallel` False: one call at the most.

    "none" leaves the tools in the prompt, and takes what looks like a call for text: without them
    its beginning, and with it what the prefix cache holds, would be another.
    """
    asked = given if isinstance(given, Mapping) else {"type": given}
    kind, most = asked.get("type") if given else "auto", None if parallel else 1
    match kind:
        case "auto":
            return ToolChoice(calls_max=most)
        case "none":
            return ToolChoice(tool_calls=False)
        case "required" | "any":
            return ToolChoice(must_call=ANY_TOOL, calls_max=most)
        case "function" | "tool":
            return ToolChoice(must_call=(_name(asked),), calls_max=1)
        case "allowed_tools":
            allowed = asked.get("allowed_tools", asked)
            if isinstance(allowed, Mapping) and allowed.get("mode") == "required":
                tools = allowed.get("tools")
                wanted = tools if isinstance(tools, list) and tools else [None]
                return ToolChoice(must_call=tuple(map(_name, wanted)), calls_max=most)
    raise not_supported("tool_choice", f"tool_choice {str(kind)[:40]!r} is not supported")


def response_format(given: Mapping[str, Any] | None, *, field: str) -> Format | None:
    """OpenAI's, of both its APIs, and Anthropic's; None: any text."""
    given = given or {}
    match given.get("type", "text"):
        case "text":
            return None
        case "json_object":
            schema = given.get("schema")
            return Format(ANY_OBJECT if schema is None else _schema(schema, field), field)
        case "json_schema":
            inner = given.get("json_schema", given)
            schema = inner.get("schema") if isinstance(inner, Mapping) else None
            return Format(_schema(schema, field), field)
        case kind:
            raise not_supported(field, f"{field} {str(kind)[:40]!r} is not supported")


def _schema(given: object, field: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise BadRequest(
            f"{field} has no schema that is an object", fix="send a JSON schema", param=field
        )
    return given


def _name(asked: object) -> str:
    """{"name": ...}, or the same within "function"."""
    inner = asked.get("function", asked) if isinstance(asked, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str):
        raise BadRequest(
            "tool_choice names no tool", fix="add the name of one", param="tool_choice"
        )
    return name

"""What the tools of a conversation take: names, parameters in order, and their types."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from flm.text.dialects.dialect import ToolList
from flm.text.dialects.values import literal, object_in

TEXT = frozenset({"string"})
_TYPES = {bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
# By the first character of its JSON; the others are numbers.
_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}


class Schemas:
    """Of functions by name. A schema that makes no sense says nothing."""

    def __init__(self, tools: ToolList) -> None:
        self._parameters = {
            function["name"]: _mapping(function.get("parameters"))
            for tool in tools
            if isinstance((function := _mapping(tool.get("function"))).get("name"), str)
        }

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def types(self, name: str, key: str) -> frozenset[str]:
        """JSON types that the parameter may have; none: nothing is known."""
        whole = self._parameters.get(name, {})
        return frozenset(_types(_mapping(_mapping(whole.get("properties")).get(key)), whole))

    def parameter(self, name: str, position: int) -> str:
        """What the argument at a position, without a name, is for."""
        names = list(_mapping(self._parameters.get(name, {}).get("properties")))
        return names[position] if position < len(names) else str(position)


def typed(text: str, types: frozenset[str]) -> str:
    """Text without quotes as JSON: what it looks like, if it may be that, else a string."""
    word = text.strip()
    maybe_text = not types or "string" in types
    found = object_in(word) if not maybe_text or _is_json(word) else None
    found = found or (literal(word) if word else '""')
    kind = _KINDS.get(found[0], "number")
    fits = not types or kind in types or (kind == "number" and "integer" in types)
    return found if fits and kind != "string" else json.dumps(text, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _types(schema: Mapping[str, Any], whole: Mapping[str, Any], depth: int = 4) -> Iterator[str]:
    given = schema.get("type")
    yield from (each for each in _list(given) or [given] if isinstance(each, str))
    for choice in _list(schema.get("enum")):
        yield _TYPES.get(type(choice), "null" if choice is None else "string")
    if not depth:
        return
    for word in ("anyOf", "oneOf", "allOf"):
        for each in _list(schema.get(word)):
            yield from _types(_mapping(each), whole, depth - 1)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        named = _mapping(whole.get("$defs")).get(reference.removeprefix("#/$defs/"))
        yield from _types(_mapping(named), whole, depth - 1)


def _mapping(given: object) -> Mapping[str, Any]:
    return given if isinstance(given, Mapping) else {}


def _list(given: object) -> list[Any]:
    return given if isinstance(given, list) else []

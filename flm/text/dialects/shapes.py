"""Grammars of calls whose arguments a dialect writes in a way of its own, not as JSON.

Only of plain schemas: members in their order, choices, values without limits. A call with any
other is written as JSON, which every reader takes as well; the library knows those limits.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from flm.text.dialects.dialect import ToolList
from flm.text.lark import Lark, either

Schema = Mapping[str, Any]
DEPTH_MAX = 16  # of references and choices within one another
DEFINED = ("$defs", "definitions")
SAYS_NOTHING = {
    *DEFINED,
    *("$comment", "$id", "$schema", "default", "deprecated", "description", "examples"),
    *("readOnly", "title", "writeOnly"),
}
SCALARS = {"boolean", "integer", "null", "number"}
NAME = re.compile(r"[\w.-]+")  # of a function: what every dialect's readers take
KINDS = SCALARS | {"array", "object", "string"}


class NotPlain(Exception):
    """The schema says more than can be had without JSON."""


def functions(tools: ToolList) -> Iterator[tuple[str, Schema]]:
    """Names, and what their arguments are: an object of what is named there, if anything is.

    What is no schema at all has the type "none".
    """
    for tool in tools:
        function = tool["function"]
        given = function.get("parameters") or {"properties": {}}
        schema: Schema = given if isinstance(given, Mapping) else {"type": "none"}
        if {"properties"} == schema.keys() & {
            *("properties", "additionalProperties", "patternProperties", "$ref"),
            *("allOf", "anyOf", "oneOf"),
        }:
            schema = {**schema, "additionalProperties": False}
        yield function["name"], {"type": "object", **schema}


def named_calls(lark: Lark, tools: ToolList, key: str) -> str:
    """One call as JSON: {"name": ..., KEY: {...}}."""
    return either(
        " ".join((lark.text(f'{{"name": "{name}", "{key}": '), lark.json(schema), lark.text("}")))
        for name, schema in functions(tools)
    )


def members(
    lark: Lark, schema: Schema, one: Callable[[str, Schema], str], *, between: str = ""
) -> str:
    """What stands between the braces of a plain object: `one` writes a key and its value.

    Raises NotPlain.
    """
    _expect(schema, {"type", "properties", "required", "additionalProperties"})
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        raise NotPlain
    if schema.get("additionalProperties") is not False and not properties:
        raise NotPlain
    if not set(map(str, required)) <= properties.keys():
        raise NotPlain
    if not all(isinstance(inner, Mapping) for inner in properties.values()):  # true, and the like
        raise NotPlain
    # From the last one on: what may follow something, and what may follow nothing.
    later, first = "", ""
    for key, inner in reversed(list(properties.items())):
        member = one(key, inner)
        after = f"{lark.text(between)} {member}" if between else member
        begin = lark.rule(f"{member} {later}")
        if key in required:
            first, later = begin, lark.rule(f"{after} {later}")
        else:
            first = lark.rule(f"{begin} | {first}") if first else f"{begin}?"
            later = lark.rule(f"({after})? {later}")
    return first


def choices(schema: Schema, whole: Schema, depth: int = DEPTH_MAX) -> Iterator[Schema]:
    """The plain schemas that it is one of: of one type, of one value, or empty. Raises NotPlain."""
    if not depth or not isinstance(schema, Mapping):
        raise NotPlain
    said = schema.keys() - SAYS_NOTHING
    if "$ref" in said:
        _expect(schema, {"$ref"})
        yield from choices(_defined(schema["$ref"], whole), whole, depth - 1)
    elif "anyOf" in said:
        _expect(schema, {"anyOf", "type"})
        for each in _list(schema["anyOf"]):
            yield from choices(each, whole, depth - 1)
    elif "enum" in said or "const" in said:
        _expect(schema, {"enum", "const", "type"})
        values = _list(schema["enum"]) if "enum" in said else [schema["const"]]
        yield from ({"const": one} for one in values)
    elif isinstance(schema.get("type"), list):
        for kind in schema["type"]:
            yield from choices({**schema, "type": kind}, whole, depth - 1)
    elif said and str(schema.get("type")) not in KINDS:
        raise NotPlain
    else:
        yield schema


def scalar(lark: Lark, schema: Schema) -> str:
    """A choice that is neither text, nor list, nor object: as JSON has it. Raises NotPlain."""
    value = schema.get("const")
    is_scalar = schema.get("type") in SCALARS or "const" in schema
    if not is_scalar or not isinstance(value, bool | int | float | None):
        raise NotPlain
    return lark.json(schema)


def own_words(lark: Lark, schema: Schema, whole: Schema) -> str:
    """JSON by a part of a whole schema. Raises NotPlain where it refers to other parts of it."""
    for reference in _references(schema):
        if not reference.startswith(tuple(f"#/{each}/" for each in DEFINED)):
            raise NotPlain
    return lark.json({**schema, **{each: whole[each] for each in DEFINED if each in whole}})


def plain_key(key: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(key):
        raise NotPlain
    return key


def _expect(schema: Schema, known: Iterable[str]) -> None:
    if schema.keys() - SAYS_NOTHING - set(known):
        raise NotPlain


def _defined(reference: object, whole: Schema) -> Schema:
    for each in DEFINED:
        name = str(reference).removeprefix(f"#/{each}/")
        named = whole.get(each)
        if isinstance(named, Mapping) and isinstance(named.get(name), Mapping):
            found: Schema = named[name]
            return found
    raise NotPlain


def _references(given: object) -> Iterator[str]:
    if isinstance(given, Mapping):
        if isinstance(given.get("$ref"), str):
            yield given["$ref"]
        for each in given.values():
            yield from _references(each)
    elif isinstance(given, list):
        for each in given:
            yield from _references(each)


def _list(given: object) -> list[Any]:
    if not isinstance(given, list) or not given:
        raise NotPlain
    return given

"""docs/api.md, from the server's OpenAPI document: `python packaging/api.py > docs/api.md`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from flm.server.app import create_app
from flm.server.residence.residence import Residence
from flm.settings import Settings

HEAD = """\
# The API

Every route, and what its body may say. `GET /openapi.json` of a server says the same to programs;
[clients.md](clients.md) has what the routes do in words, and how apps are pointed at them.

Fields that are not listed pass unread, for agents send many. Where no default stands, it is the
model's own or what the server was started with. The routes of
tokens and of the prefix cache need no `model`.

<!-- written by python packaging/api.py > docs/api.md -->

## Routes
"""
REPLIES = ("ChatBody", "CompletionBody", "ResponsesBody", "MessagesBody")
COMMON = "What requests for replies take"  # all of these
TYPES = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
TYPES |= {"string": "a text", "object": "an object"}
LIMITS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}"}
LIMITS |= {"exclusiveMaximum": "< {}", "maxLength": "{} characters at the most"}

Schema = Mapping[str, Any]


def page() -> Iterator[str]:
    """The lines of the page."""
    document = create_app(Settings(), Residence()).openapi()
    schemas = document["components"]["schemas"]
    routes = [
        (f"{method.upper()} {path}", route)
        for path, methods in document["paths"].items()
        for method, route in methods.items()
    ]
    yield from (HEAD, "| route | takes | |", "|---|---|---|")
    for place, route in routes:
        takes = [*map(_link, _named(_body(route))), *(f"`?{name}=`" for name in _queries(route))]
        yield f"| `{place}` | {', '.join(takes) or '–'} | {route['description']} |"
    yield from ("", "In the address:", "", "| | |", "|---|---|")
    for name, text in {k: v for _, route in routes for k, v in _queries(route).items()}.items():
        yield f"| `{name}` | {text} |"
    common = set.intersection(*({*_rows(schemas[name])} for name in REPLIES))
    yield from ("", f"## {COMMON}", "", ", ".join(map(_link, REPLIES)) + ":", "")
    yield from _table(row for row in _rows(schemas["ChatBody"]) if row in common)
    for name in _reached([name for _, route in routes for name in _named(_body(route))], schemas):
        rows = _rows(schemas[name])
        shared = common <= {*rows}
        yield from ("", f"## {name}", "")
        yield from _table(row for row in rows if not (shared and row in common))
        if shared:
            yield f"\nAnd [{COMMON.lower()}](#{COMMON.lower().replace(' ', '-')})."


def _body(route: Schema) -> Schema:
    if "requestBody" not in route:
        return {}
    schema: Schema = route["requestBody"]["content"]["application/json"]["schema"]
    return schema


def _queries(route: Schema) -> dict[str, str]:
    asked = [each for each in route.get("parameters", ()) if each["in"] == "query"]
    return {each["name"]: each["description"] for each in asked}


def _named(schema: Schema) -> list[str]:
    """The schemas that one refers to."""
    if "$ref" in schema:
        return [schema["$ref"].rpartition("/")[2]]
    inner = [*schema.get("anyOf", ()), *schema.get("properties", {}).values()]
    inner += [schema["items"]] if "items" in schema else []
    return [name for each in inner for name in _named(each)]


def _reached(names: list[str], schemas: Mapping[str, Schema]) -> list[str]:
    """These and what is in them, each once, in order of their being named."""
    known: dict[str, None] = {}
    while names:
        known |= dict.fromkeys(names)
        inner = [name for each in names for name in _named(schemas[each])]
        names = [name for name in inner if name not in known]
    return list(known)


def _table(rows: Iterator[str]) -> Iterator[str]:
    yield from ("| field | takes | default |", "|---|---|---|")
    yield from rows


def _rows(schema: Schema) -> list[str]:
    """A field each, those that must be there first."""
    needed = schema.get("required", [])
    rows = []
    for name, field in sorted(schema["properties"].items(), key=lambda each: each[0] not in needed):
        default = field.get("default")
        shown = "must be there" if name in needed else f"`{json.dumps(default)}`"
        rows.append(f"| `{name}` | {_takes(field)} | {'' if shown == '`null`' else shown} |")
    return rows


def _takes(field: Schema) -> str:
    if "$ref" in field:
        return _link(*_named(field))
    if "enum" in field or "const" in field:
        values = field.get("enum", [field.get("const")])
        return " or ".join(f"`{json.dumps(each)}`" for each in values)
    if "anyOf" in field:
        kinds = [_takes(each) for each in field["anyOf"] if each.get("type") != "null"]
        return " or ".join(each for each in kinds if each != "a whole number" or len(kinds) == 1)
    kind = TYPES.get(field.get("type", ""), "anything")
    if field.get("type") == "array":
        kind = f"a list of {_many(_takes(field.get('items') or {}))}"
    limits = [text.format(_short(field[key])) for key, text in LIMITS.items() if key in field]
    return f"{kind} ({', '.join(limits)})" if limits else kind


def _many(kinds: str) -> str:
    """Of "a text or a list of texts": "texts or lists of texts"."""
    named = {f"{one}": f"{one.split(' ', 1)[1]}s" for one in TYPES.values() if one[0] == "a"}
    parts = [named.get(one, one.replace("a list of", "lists of")) for one in kinds.split(" or ")]
    return " or ".join(parts)


def _short(limit: float) -> str:
    power = int(abs(limit)).bit_length() - 1
    if power < 31 or abs(limit) != 2**power:
        return f"{limit:g}"
    return f"{'-' * (limit < 0)}2^{power}"


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


if __name__ == "__main__":
    print("\n".join(page()))

"""The grammar of a whole reply: a thought if there is one, then what was asked for.

A thought is any text, and ends as the dialect has it: what comes after is held to the schema, or
is calls, or either of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import Any

from flm.core.grammar import Grammar
from flm.errors import BadRequest, UnsupportedFeature
from flm.text.dialects.dialect import Dialect, ToolList
from flm.text.dialects.shapes import DEFINED, NAME, NotPlain, functions
from flm.text.grammar import Grammars, NoGrammar, brief
from flm.text.lark import Lark, either

CALLS_MAX = 16  # in one reply
PARTS_MAX, LOOK_S = 64, 1.0  # of a schema that is refused, looked at to tell where; for so long
AFTER_THOUGHT = r"/[ \n]{1,4}/?"
# Where schemas stand in one: by name, in a list, alone.
NAMED = ("properties", "patternProperties", *DEFINED)
LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = ("items", "additionalProperties")
ROOT = ", at its root"

Schema = Mapping[str, Any]


class Thought(Enum):
    """Whether a reply begins with one: the prompt has opened it, or the model may."""

    NONE = "none"
    MAY = "may"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Format:
    """What content has to be: JSON, valid by `schema`. `field` is where the client asked for it."""

    schema: Schema
    field: str


def reply_grammar(
    grammars: Grammars,
    dialect: Dialect,
    thought: Thought,
    *,
    format: Format | None,
    tools: ToolList,
    calls_max: int = CALLS_MAX,
) -> Grammar:
    """Content in `format`, or calls of these tools. Raises BadRequest, UnsupportedFeature."""
    lark = Lark(grammars.special)
    ways = []
    if format:
        answer = [lark.text(dialect.answer)] if dialect.answer else []
        ways.append(" ".join([*answer, _json(lark, format)]))
    if tools and dialect.calls:
        ways.append(_calls(lark, dialect, tools, calls_max))
    if not ways:
        raise UnsupportedFeature(
            "this model's chat template tells of no tools, so it cannot be made to call one",
            fix="leave tool_choice out, or take a model that knows tools",
            param="tool_choice",
        )
    try:
        return grammars.compile(lark.source(_thought(lark, dialect, thought) + either(ways)))
    except NoGrammar as error:
        raise _refusal(grammars, format, tools, error) from error


def _thought(lark: Lark, dialect: Dialect, thought: Thought) -> str:
    opens, closes = dialect.thought
    rest = f"{lark.until(closes)} {AFTER_THOUGHT} "
    match thought:
        case Thought.NONE:
            return ""
        case Thought.OPEN:
            return rest
        case Thought.MAY:
            return f"({lark.text(opens)} {rest})? "


def _json(lark: Lark, format: Format) -> str:
    try:
        return lark.json(format.schema)
    except RecursionError as error:
        raise BadRequest(
            f"{format.field} is nested too deeply", fix="send a flatter schema", param=format.field
        ) from error


def _calls(lark: Lark, dialect: Dialect, tools: ToolList, most: int) -> str:
    assert dialect.calls
    for name, schema in functions(tools):
        if not NAME.fullmatch(name):
            raise _unfit(f"the name {name!r:.80} has characters that a call cannot have here")
        if schema["type"] != "object":
            raise _unfit(f"the parameters of {name!r} are no object")
    try:
        return dialect.calls(lark, tools, most)
    except NotPlain as error:
        raise _unfit("arguments of such names are nothing that this model can write") from error
    except RecursionError as error:
        raise _unfit("parameters are nested too deeply") from error


def _refusal(
    grammars: Grammars, format: Format | None, tools: ToolList, whole: NoGrammar
) -> UnsupportedFeature:
    """Whose schema it is, and where in it."""
    if format and (found := _culprit(grammars, format.schema)):
        return UnsupportedFeature(
            f"{format.field}{found[0] or ROOT + ','} cannot be enforced: {found[1]}",
            fix="leave that out of the schema",
            param=format.field,
        )
    for name, schema in functions(tools):
        if found := _culprit(grammars, schema):
            return _unfit(f"in the parameters of {name!r}{found[0] or ROOT}: {found[1]}")
    return UnsupportedFeature(
        f"what is asked of the reply cannot be enforced: {brief(str(whole))}",
        fix="send fewer tools or smaller schemas",
        param=format.field if format else "tools",
    )


def _unfit(reason: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"tools cannot be enforced: {reason}",
        fix="change that tool, or leave it out",
        param="tools",
    )


def _culprit(grammars: Grammars, schema: Schema) -> tuple[str, str] | None:
    """Where in a schema and why: the deepest part that is refused by itself as well."""
    reason = _reason(grammars, schema)
    if not reason:
        return None
    shared = {each: schema[each] for each in DEFINED if each in schema}
    path, looks, until = "", PARTS_MAX, monotonic() + LOOK_S
    parts = _parts(schema)
    while looks and monotonic() < until and (part := next(parts, None)):
        looks -= 1
        if found := _reason(grammars, {**shared, **part[1]}):
            path, reason, parts = path + part[0], found, _parts(part[1])
    return path, reason


def _reason(grammars: Grammars, schema: Schema) -> str:
    lark = Lark()
    try:
        grammars.compile(lark.source(lark.json(schema)))
    except NoGrammar as error:
        return brief(str(error))
    return ""


def _parts(schema: Schema) -> Iterator[tuple[str, Schema]]:
    found: list[tuple[str, object]] = [(f".{each}", schema.get(each)) for each in SINGLE]
    for each in NAMED:
        if isinstance(named := schema.get(each), Mapping):
            found += [(f".{each}.{name}", part) for name, part in named.items()]
    for each in LISTED:
        if isinstance(listed := schema.get(each), Sequence):
            found += [(f".{each}[{index}]", part) for index, part in enumerate(listed)]
    yield from ((step, part) for step, part in found if isinstance(part, Mapping))

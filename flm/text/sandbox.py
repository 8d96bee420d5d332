"""The sandbox that chat templates run in: Jinja's, with an end to time and size.

A template comes with the model's file, so from anywhere. Jinja keeps it from reaching us; here it
is kept from taking all the time (loops and calls look at the clock) and all the memory: what grows
a text is weighed before it does. Weights are characters, of a text or of all that is in a list.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any, NoReturn

WEIGHT_MAX = 2**24
ITEM_WEIGHT = 64
NUMBER_BITS_MAX = 2**14
RENDER_S_MAX = 10.0

# Filters that write a value as text; those that pad it, which no chat template needs, are gone.
WRITING = "string upper lower title capitalize trim truncate escape e forceescape striptags"
WRITING += " wordcount urlencode safe"
PADDING = ("center", "wordwrap", "urlize", "xmlattr", "pprint", "batch", "slice")
PADDING_METHODS = {"center", "ljust", "rjust", "zfill", "expandtabs", "translate", "format_map"}
# Widths in a format that are large, or not known yet.
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(\d{3}|\*)")
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(\d{3}|\{)")

_ends_at: ContextVar[float] = ContextVar("_ends_at")


class RaisedByTemplate(Exception):
    """The template called raise_exception."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Templates rendered inside end in time."""
    token = _ends_at.set(time.monotonic() + RENDER_S_MAX)
    try:
        yield
    finally:
        _ends_at.reset(token)


def compiled(source: str) -> Any:
    """The template of `source`. Raises jinja2.TemplateError, SyntaxError or RecursionError."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    def filtered(node: Any, name: str) -> nodes.Filter:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)

    class Bounds(NodeTransformer):
        def visit_For(self, node: nodes.For) -> nodes.For:
            self.generic_visit(node)
            node.iter = filtered(node.iter, "timed")
            return node

        def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
            self.generic_visit(node)
            return filtered(nodes.List(node.nodes, lineno=node.lineno), "concatenated")

        def visit_Assign(self, node: nodes.Assign) -> nodes.Assign:
            self.generic_visit(node)
            if isinstance(node.target, nodes.NSRef):  # what a loop carries to its next turn
                node.node = filtered(node.node, "weighed")
            return node

    environment = _environment()
    return environment.from_string(Bounds().visit(environment.parse(source)))


def check_weight(value: Any) -> Any:
    """The value, if it would not be written as more than WEIGHT_MAX characters."""
    left, inside = WEIGHT_MAX, [value]
    while inside:
        one = inside.pop()
        if isinstance(one, str):
            left -= len(one)
        elif isinstance(one, int):
            left -= one.bit_length() // 3
        elif isinstance(one, dict):
            left -= ITEM_WEIGHT * len(one)
            inside += [*one.keys(), *one.values()] if left > 0 else ()
        elif isinstance(one, list | tuple):
            left -= ITEM_WEIGHT * len(one)
            inside += one if left > 0 else ()
        if left < 0:
            raise OverflowError(f"it wrote more than {WEIGHT_MAX:,} characters")
    return value


def bounded(chunks: Iterable[str]) -> str:
    """What a template's chunks are together."""
    kept: list[str] = []
    left = WEIGHT_MAX
    for chunk in chunks:
        left -= len(chunk)
        _check_count(WEIGHT_MAX - left)
        kept.append(chunk)
    return "".join(kept)


def _check_count(weight: int) -> None:
    if weight > WEIGHT_MAX:
        raise OverflowError(f"it wrote more than {WEIGHT_MAX:,} characters")


def _check_time() -> None:
    if time.monotonic() > _ends_at.get():
        raise TimeoutError(f"it ran for more than {RENDER_S_MAX:g} s")


def _check_percent(text: str) -> None:
    if _WIDE_PERCENT.search(text.replace("%%", "")):
        raise OverflowError("it pads a text, which may take all memory")


def _check_braces(text: str) -> None:
    if _WIDE_BRACES.search(text.replace("{{", "").replace("}}", "")):
        raise OverflowError("it pads a text, which may take all memory")


def _check_operation(operator: str, left: Any, right: Any) -> None:
    if operator == "**":
        raise OverflowError("it raised a number to a power, which may take forever")
    if operator == "%":
        if isinstance(left, str):
            _check_percent(left)
            check_weight(right)
    elif operator == "+":
        if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            _check_count(len(left) + len(right))
    else:
        for items, count in ((left, right), (right, left)):
            if isinstance(items, str | list | tuple) and isinstance(count, int):
                _check_count(len(items) * count)
            elif isinstance(items, int) and items.bit_length() > NUMBER_BITS_MAX:
                raise OverflowError("it multiplied a number that is too large")


def _checked_arguments(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    _check_time()
    method = getattr(function, "__wrapped__", function)  # Jinja wraps str.format
    of, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if isinstance(of, str) and name == "replace" and len(args) > 1:
        _check_replace(of, args[0], args[1])
    elif isinstance(of, str) and name == "format":
        _check_braces(of)
        check_weight(args)
    elif isinstance(of, str) and name == "join" and len(args) == 1:
        return (_check_join(of, args[0]),)
    elif type(function).__name__ in ("Macro", "LoopContext"):  # which may call itself with more
        check_weight(args)
    return args


def _check_replace(text: str, old: object, new: object) -> None:
    if isinstance(old, str) and isinstance(new, str):
        _check_count(len(text) + text.count(old) * len(new))


def _check_join(between: str, items: Iterable[Any]) -> list[Any]:
    kept = list(_timed(items))
    check_weight(kept)
    _check_count(len(between) * len(kept))
    return kept


def _timed(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _check_time()
        yield item


def _concatenated(values: list[Any]) -> str:
    return "".join(map(str, check_weight(values)))


def _replace(text: object, old: object, new: object, count: int | None = None) -> str:
    written, old, new = str(check_weight(text)), str(old), str(new)
    _check_replace(written, old, new)
    return written.replace(old, new, -1 if count is None else count)


def _format(text: object, *args: Any, **kwargs: Any) -> str:
    _check_percent(str(text))
    check_weight([*args, *kwargs.values()])
    return str(text) % (kwargs or args)


def _indent(text: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    from jinja2.filters import do_indent

    written = str(check_weight(text))
    step = len(width) if isinstance(width, str) else width
    _check_count(len(written) + (written.count("\n") + 1) * step)
    return do_indent(written, width, first, blank)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own would escape for HTML and sort the keys."""
    check_weight(value)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=None if indent is None else min(indent, 8),
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> NoReturn:
    raise RaisedByTemplate(str(message))


def _weighing(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that first weighs all it is given."""

    @wraps(function)
    def weighed(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            check_weight(value)
        return function(*args, **kwargs)

    return weighed


@cache
def _environment() -> Any:
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.filters import FILTERS, make_attrgetter
    from jinja2.parser import Parser
    from jinja2.runtime import Context
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what the model says, for training: here just its body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"+", "%", "*", "**"})

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            return attr not in PADDING_METHODS and super().is_safe_attribute(obj, attr, value)

        def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            args = _checked_arguments(function, args)
            return super().call(context, function, *args, **kwargs)

        def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
            _check_operation(operator, left, right)
            return super().call_binop(context, operator, left, right)

    def join(values: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        if attribute is not None:
            values = map(make_attrgetter(environment, attribute), values)
        return str(d).join(map(str, _check_join(str(d), values)))

    environment = Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, "jinja2.ext.loopcontrols"],
        finalize=check_weight,
    )
    for name in PADDING:
        del environment.filters[name]
    environment.filters |= {name: _weighing(FILTERS[name]) for name in WRITING.split()}
    environment.filters |= {
        "tojson": _to_json,
        "join": join,
        "replace": _replace,
        "format": _format,
        "indent": _indent,
        "timed": _timed,
        "weighed": check_weight,
        "concatenated": _concatenated,
    }
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = _raise_exception
    return environment

"""Calls as Python writes them: f(a=1, b="x")."""

import json
import re

from flm.core.chat import is_function_name
from flm.text.dialects.calls import Said
from flm.text.dialects.feed import Feed, NotACall, Parse
from flm.text.dialects.shapes import Schema, members, own_words, plain_key
from flm.text.dialects.values import literal, value
from flm.text.lark import Lark

KEY = re.compile(r"[A-Za-z_]\w*")


def python_call(feed: Feed, said: Said) -> Parse[None]:
    """One; arguments without a name are told apart by the schema."""
    name = yield from feed.word("-.")
    if not is_function_name(name) or not (yield from feed.skip("(")):
        raise NotACall
    said.begin(name)
    feed.free()
    separator, count = "{", 0
    while True:
        yield from feed.skip_all(" \t\r\n,")
        char = yield from feed.next()
        if not char or char in "]})":
            break
        word = "" if char.isdigit() else (yield from feed.word())
        yield from feed.skip_all(" ")
        named = bool(word) and (yield from feed.skip("="))
        key = word if named else said.schemas.parameter(name, count)
        said.write(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        if word and not named:
            said.write(literal(word))
        else:
            yield from value(feed, said.write, around=")]")
        separator, count = ", ", count + 1
    said.write("{}" if separator == "{" else "}")
    yield from feed.skip(")")


def written_call(lark: Lark, name: str, schema: Schema) -> str:
    """The grammar of one. Raises NotPlain."""

    def argument(key: str, inner: Schema) -> str:
        is_boolean = inner.get("type") == "boolean"
        words = '("True" | "False")' if is_boolean else own_words(lark, inner, schema)
        return lark.between(f"{plain_key(key, KEY)}=", words)

    return lark.between(f"{name}(", members(lark, schema, argument, between=", "), ")")

"""A grammar in the making, as text: llguidance's variant of Lark.

Invariant: no text of a client's is anything but a quoted text or JSON in it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

# Between JSON's tokens, once: without a limit weak models write no end of it.
WHITE = r" |\n[ \t]{0,32}"
WHATEVER = "/(?s:.*)/"


class Lark:
    """`special` are tokens by text: in no other place than by name may a reply have them.

    What its methods give stands for something in the body of a rule.
    """

    def __init__(self, special: Mapping[str, int] | None = None) -> None:
        self._special = special or {}
        self._apart = re.compile("|".join(map(re.escape, self._special)) or r"(?!)")
        self._rules: dict[str, str] = {}  # names by what they are

    def rule(self, body: str, *, options: str = "") -> str:
        return self._name(f"{options}: {body}", "r")

    def text(self, text: str) -> str:
        """`text` itself: special tokens in it are these tokens."""
        parts, at = [], 0
        for found in self._apart.finditer(text):
            parts += [_quoted(text[at : found.start()]), f"<[{self._special[found[0]]}]>"]
            at = found.end()
        parts.append(_quoted(text[at:]))
        return " ".join(filter(None, parts)) or '""'

    def between(self, opens: str, body: str, closes: str = "") -> str:
        return " ".join(filter(None, (self.text(opens), body, closes and self.text(closes))))

    def until(self, mark: str, *never: str) -> str:
        """Any text, and the `mark` that ends it; it holds none of `never`."""
        token = self._apart.match(mark)
        never += (token[0],) if token else ()
        words = " | ".join(map(_quoted, never))
        text = f"{WHATEVER} & ~({WHATEVER} ({words}) {WHATEVER})" if words else WHATEVER
        name = self._name(f": {text}", "T")
        if token:
            return f"{name}? {self.text(mark)}"
        return self.rule(name, options=f"[suffix={_quoted(mark)}]")

    def json(self, schema: Mapping[str, Any]) -> str:
        """JSON that is valid by `schema`. What it says to the library itself is not heard."""
        own = {"x-guidance": {"whitespace_pattern": WHITE}}
        return self.rule(f"%json {json.dumps({**schema, **own})}")

    def several(self, one: str, most: int, *, between: str = "") -> str:
        """One of them or more."""
        more = f"{_quoted(between)} {one}" if between else one
        return one if most < 2 else f"{one} ({more}){{0,{most - 1}}}"

    def source(self, start: str) -> str:
        return "\n".join([f"start: {start}", *(name + is_ for is_, name in self._rules.items())])

    def _name(self, is_: str, kind: str) -> str:
        return self._rules.setdefault(is_, f"{kind}{len(self._rules)}")


def either(choices: Iterable[str]) -> str:
    return f"({' | '.join(choices)})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""

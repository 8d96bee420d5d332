"""A reply as it is written, its markdown in colour: headings, bold words, code.

Invariants:
  * Colour is all that is added: without it, what comes out is what went in.
  * How the text is cut into pieces changes nothing.
"""

import re

from flm import console

BOLD, CODE, QUIET = "1", "36", "2"
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
PERHAPS_FENCE = re.compile(r" {0,3}(`{0,2}|~{0,2})")
HEADING = re.compile(r"#{1,6}(?= )")
PERHAPS_HEADING = re.compile(r"#{1,6}")
PLAIN = re.compile(r"[^\n*`]+|\*(?!\*)")
MARKS = {"**": BOLD, "`": CODE}


class Markup:
    """`add` gives what can be shown by now, `end` the rest. Plain where there is no terminal."""

    def __init__(self) -> None:
        self._held = ""  # may yet become a mark
        self._fresh = True  # at the beginning of a line
        self._fence = ""  # what the code block that we are in began with
        self._open: dict[str, str] = {}  # marks that are to be closed on this line, and their style

    def add(self, text: str) -> str:
        if not console.in_colour():
            return text
        self._held += text
        return self._take(over=False)

    def end(self) -> str:
        return self._take(over=True)

    def _take(self, *, over: bool) -> str:
        shown = ""
        while self._held and (piece := self._next(self._held, over=over)):
            text, style = piece
            self._held = self._held[len(text) :]
            shown += f"\033[{style}m{text}\033[0m" if style else text
        return shown

    def _next(self, held: str, *, over: bool) -> tuple[str, str] | None:
        """Of what is held, what can be told by now, and its style."""
        if self._fresh:
            undecided = PERHAPS_FENCE.fullmatch(held) or PERHAPS_HEADING.fullmatch(held)
            fence = FENCE.match(held)
            if not over and (undecided or (fence and "\n" not in held)):
                return None
            if fence:
                return self._fence_line(held.partition("\n")[0], fence[1])
            self._fresh = False
            if not self._fence and (heading := HEADING.match(held)):
                self._open["#"] = BOLD
                return heading[0], QUIET
        if held[0] == "\n":
            self._fresh, self._open = True, {}
            return "\n", ""
        if self._fence:
            return held.partition("\n")[0], CODE
        if plain := PLAIN.match(held):
            if plain[0] == held == "*" and not over:
                return None
            return plain[0], ";".join(self._open.values())
        mark = "**" if held.startswith("**") else "`"
        if self._open.pop(mark, None) is None:
            self._open[mark] = MARKS[mark]
        return mark, QUIET

    def _fence_line(self, line: str, mark: str) -> tuple[str, str]:
        self._fresh = False
        if not self._fence:
            self._fence = mark
        elif line.strip() == mark and mark.startswith(self._fence):
            self._fence = ""
        else:
            return line, CODE
        return line, QUIET

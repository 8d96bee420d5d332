"""Stop strings: the reply is shown up to the first one, wherever tokens cut the text.

Invariants:
  * What was shown holds no stop and no beginning of one that a later text may complete.
  * The same text in other pieces shows the same and stops at the same place: the stop that is
    complete first wins, the longest of those complete at once.
"""

from collections.abc import Iterable


def held_length(text: str, marks: Iterable[str]) -> int:
    """The length of the longest end of `text` that begins a mark without completing it."""
    longest = 0
    for mark in marks:
        for length in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:length]):
                longest = length
                break
    return longest


class StopStrings:
    def __init__(self, stops: tuple[str, ...]) -> None:
        assert all(stops), "an empty stop string"
        self._stops = stops
        self._held = ""
        self.met: str | None = None  # the stop that ended the reply

    def add(self, text: str) -> tuple[str, bool]:
        """(what may be shown, whether a stop was met). After a stop nothing more is shown."""
        if self.met is not None:
            return "", True
        text = self._held + text
        met = [
            (start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0
        ]
        if met:
            end, start = min(met)
            self._held, self.met = "", text[start:end]
            return text[:start], True
        cut = len(text) - held_length(text, self._stops)
        self._held = text[cut:]
        return text[:cut], False

    def finish(self) -> str:
        """What was held back and is now due: the reply ended before a stop was whole."""
        held, self._held = self._held, ""
        return held

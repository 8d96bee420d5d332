"""Encodes a text from where it parts from one that was encoded before.

A chat sends back all that it sent, so nearly all of a prompt was encoded a moment ago. A tokenizer
takes the stretches between special tokens one by one, so texts that are alike up to and with a
special token have the same tokens before it. Such a place is a *seam*, and encoding starts at the
last that both have. Whether a special token makes a seam is tried: some are none inside a word.

Invariants:
  * Whatever is remembered, a text gets the tokens that the tokenizer gives for the whole of it.
  * What is remembered of one domain makes nothing faster in another.
  * The texts remembered have at most `chars_max` characters, but for the youngest.
"""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import product
from threading import Lock

from flm.core.alike import common_length
from flm.text.tokenizer import Tokenizer

CHARS_MAX = 2**21  # a dozen long chats, in some 30 MB
ALIKE_MIN = 0.9  # of a text within the next one: then the next one stands for both

# What likes to merge with a neighbour.
_BEFORE = ("a", "a ", "a\n")
_AFTER = ("a", " a", "\na", "7")


@dataclass(frozen=True, slots=True)
class Seam:
    """A special token, written as text[start:end], with `tokens` tokens before it."""

    start: int
    end: int
    tokens: int


START = Seam(0, 0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    text: str
    tokens: list[int]
    seams: list[Seam]  # rising; START is the first
    domain: str = ""

    def last_seam(self, chars: int) -> int:
        """Index of the last that lies wholly in the first `chars` characters."""
        return bisect_right(self.seams, chars, key=lambda seam: seam.end) - 1


class Encoder:
    """Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, *, chars_max: int = CHARS_MAX) -> None:
        self._tokenizer = tokenizer
        self._chars_max = chars_max
        self._remembered: list[Encoded] = []  # the youngest last
        self._makes_seam: dict[str, bool] = {}  # special tokens that were met
        self._lock = Lock()

    def encode(self, text: str, *, domain: str = "") -> Encoded:
        """From the likest text of its domain remembered; and remembered itself."""
        with self._lock:
            remembered = list(self._remembered)
        own = [each for each in remembered if each.domain == domain]
        alike = {each: common_length(text, each.text) for each in own}
        known = max(own, key=lambda each: alike[each], default=Encoded("", [], [START]))
        last = known.last_seam(alike.get(known, 0))
        seam = known.seams[last]
        tokens = self._tokenizer.encode(text[seam.start :])
        seams = known.seams[: max(last, 1)] + self._seams(text, seam, tokens)
        encoded = Encoded(text, known.tokens[: seam.tokens] + tokens, seams, domain)

        kept = [each for each in remembered if alike.get(each, 0) < ALIKE_MIN * len(each.text)]
        while kept and sum(len(each.text) for each in kept) + len(text) > self._chars_max:
            del kept[0]
        with self._lock:  # what another thread adds meanwhile may be lost: it is only slower
            self._remembered = [*kept, encoded]
        return encoded

    def alike(self, known: Encoded, text: str) -> int:
        """How many tokens `text` has in common with `known`."""
        common = common_length(text, known.text)
        seam = known.seams[known.last_seam(common)]
        # To where they are at the next special token: what comes after cannot matter.
        names = [name for name, makes in list(self._makes_seam.items()) if makes]
        found = [(text.find(name, common), len(name)) for name in names]
        end = min((at + length for at, length in found if at >= 0), default=len(text))
        tokens = self._tokenizer.encode(text[seam.start : end])
        mine = known.tokens[seam.tokens : seam.tokens + len(tokens)]
        return seam.tokens + common_length(mine, tokens)

    def _seams(self, text: str, seam: Seam, tokens: list[int]) -> list[Seam]:
        """Those from `seam` on, where `text` has `tokens`. None, if the two do not tally."""
        special = self._tokenizer.special_ids
        found = [(at, token) for at, token in enumerate(tokens, seam.tokens) if token in special]
        names = {token: self._tokenizer.piece(token) for _, token in found}
        counts = Counter(token for _, token in found)
        if any(text.count(names[token], seam.start) != counts[token] for token in counts):
            return []
        seams, start = [], seam.start
        for at, token in found:
            start = text.index(names[token], start)
            end = start + len(names[token])
            if self._is_seam(names[token]):
                seams.append(Seam(start, end, at))
            start = end
        return seams

    def _is_seam(self, name: str) -> bool:
        """Whether what is before this special token is not touched by what is after."""
        if name not in self._makes_seam:
            encode = self._tokenizer.encode
            self._makes_seam[name] = all(
                encode(left + name + right) == encode(left + name)[:-1] + encode(name + right)
                for left, right in product(_BEFORE, _AFTER)
            )
        return self._makes_seam[name]

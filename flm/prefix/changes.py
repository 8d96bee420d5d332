"""What kind of change it is that two texts differ by. Pure, over strings.

A class is named where both texts show it; a number is no time because it could be one.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum

NEAR = 96  # characters before and after a difference, enough for what is one word or one date
AFTER = 8  # characters that must be alike after two numbers
SPACED = 12  # characters that must be alike but for white space


class Change(Enum):
    """The value is said in the log."""

    TIME = "time"
    ID = "id"
    COUNTER = "counter"
    REORDERED_TOOLS = "reordered tools"
    REORDERED_KEYS = "reordered keys"
    WHITESPACE = "whitespace"
    RERENDERED = "re-rendered history"
    EDITED = "edited history"
    OTHER = "other text"
    EVICTED = "evicted"  # nothing differs: it was kept
    NEVER_CAPTURED = "never captured"  # nothing differs: it was seen


_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_DAY, _YEAR = r"\d{1,2}(?:st|nd|rd|th)?", r"(?:19|20)\d\d"
_CLOCK = r"(?:[01]?\d|2[0-3]):[0-5]\d:[0-5]\d(?:[.,]\d+)?|(?:[01]\d|2[0-3]):[0-5]\d"
_TIMES = tuple(
    re.compile(source)
    for source in (
        rf"(?<![\w:./-])(?:{_CLOCK}|(?:0?\d|1[0-2])(?::[0-5]\d)?(?= ?[AaPp]\.?[Mm]\b))"
        r"(?: ?[AaPp]\.?[Mm]\b)?(?![\w:]|\.\d)",
        rf"(?<![\w.-]){_YEAR}-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12]\d|3[01]))?"
        rf"(?:[T ](?:{_CLOCK})(?: ?Z|[+-]\d\d:?\d\d)?)?(?![\w-])",
        rf"(?<![\w./]){_YEAR}[/.](?:0?[1-9]|1[0-2])[/.](?:0?[1-9]|[12]\d|3[01])(?![\w/]|\.\d)",
        r"(?<![\w./])(?:0?[1-9]|[12]\d|3[01])([/.])(?:0?[1-9]|[12]\d|3[01])\1"
        rf"{_YEAR}(?![\w/]|\.\d)",
        rf"(?<!\w){_YEAR}[01]\d[0-3]\dT[0-2]\d[0-5]\d(?:[0-5]\d)?Z?(?!\w)",
        rf"\b(?:{_DAY} )?{_MONTH}\b\.?(?: {_DAY})?(?:,? {_YEAR}\b)?(?![\w-])",
        r"\b(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b",
        r"\b(?:\d+|an?|one) (?:second|minute|hour|day|week|month)s? ago\b",
    )
)
_EPOCH = re.compile(r"(?<![\w.])(1[5-9]\d{8})(?:\.\d+|\d{3}|\d{6})?(?!\w|\.\d)")
_EPOCH_APART_MAX = 10**8  # seconds, three years
_NUMBER = re.compile(r"(?<![A-Za-z_\d.])\d[\d,]*(?:\.\d+)?(?![A-Za-z_\d]|\.\d)")
_WORD = re.compile(r"[A-Za-z0-9_-]+={0,2}")
_HEX = re.compile(r"[0-9a-f]{7,}|[0-9A-F]{7,}")
_CODE = re.compile(r"[0-9a-fA-F]+|(?=.*\d)[\w-]+")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")
_KEYED = re.compile(
    r"(?i)(?:id|hash|nonce|session|request|trace|cch|etag|sha\d*|digest|build|commit)"
    r"(?:=|\"?: ?\")([\w-]{4,})"
)


def change_of(before: str, ours: str, theirs: str) -> Change | None:
    """Of two texts that begin with `before` and then differ at once; None if no word for it."""
    before, ours, theirs = before[-NEAR:], ours[:NEAR], theirs[:NEAR]
    if is_time(before, ours, theirs):
        return Change.TIME
    if is_id(before, ours, theirs):
        return Change.ID
    if is_counter(before, ours, theirs):
        return Change.COUNTER
    if is_whitespace(ours, theirs) or is_whitespace(before[-1:] + ours, before[-1:] + theirs):
        return Change.WHITESPACE
    return None


def is_time(before: str, ours: str, theirs: str) -> bool:
    if any(_pairs(_TIMES, before, ours, theirs)):
        return True
    return any(
        len(one[0]) == len(other[0]) and abs(int(one[1]) - int(other[1])) <= _EPOCH_APART_MAX
        for one, other in _pairs((_EPOCH,), before, ours, theirs)
    )


def is_id(before: str, ours: str, theirs: str) -> bool:
    """Two words of one length that look drawn, or are said to be an id."""
    pairs = [(one[0], other[0]) for one, other in _pairs((_WORD,), before, ours, theirs)]
    if any(is_random(one) and is_random(other) for one, other in pairs if len(one) == len(other)):
        return True
    keyed = [(one[1], other[1]) for one, other in _pairs((_KEYED,), before, ours, theirs)]
    return any(
        len(one) == len(other) and all(_CODE.fullmatch(word) for word in (one, other))
        for one, other in keyed
    )


def is_random(word: str) -> bool:
    """Whether it looks drawn, not written: a uuid, hex, base64, or one after a prefix."""
    if _UUID.fullmatch(word):
        return True
    word = word.rstrip("=")
    tail = re.split(r"[_-]", word)[-1]
    if any(_HEX.fullmatch(part) and _mixed(part, 1) for part in (word, tail)):
        return True
    if len(tail) >= 16 and _HEX.fullmatch(tail):
        return True
    if tail != word and len(tail) >= 6 and _mixed(tail, 2):
        return True
    cased = word.lower() != word != word.upper()
    return len(word) >= 16 and cased and len(re.findall(r"\d+", word)) >= 2


def is_counter(before: str, ours: str, theirs: str) -> bool:
    """Two numbers, after which all is alike."""
    for one, other in _pairs((_NUMBER,), before, ours, theirs):
        here, there = (match.string[match.end() :][:AFTER] for match in (one, other))
        length = min(len(here), len(there))
        if here[:length] == there[:length]:
            return True
    return False


def is_whitespace(ours: str, theirs: str) -> bool:
    if not (ours[:1].isspace() or theirs[:1].isspace()) or ours == theirs:
        return False
    one, other = "".join(ours.split()), "".join(theirs.split())
    alike = min(len(one), len(other))
    if one == other:
        return True
    return alike >= SPACED and one[:alike] == other[:alike]


def same_words(ours: str, theirs: str) -> Change | None:
    """How `theirs`, as far as it has as many words as `ours`, differs: in their order, or less."""
    one = _words(ours)
    other = _words(theirs)[: len(one)]
    if one == other:
        return Change.WHITESPACE
    return Change.REORDERED_KEYS if Counter(one) == Counter(other) else None


def _words(text: str) -> list[str]:
    """Escapes, quotes and brackets are how JSON is written, not what it says."""
    return re.findall(r"\w+|[^\w\s\"'\\{}\[\],:]", re.sub(r"\\[nrt\"\\]", " ", text))


def _pairs(
    patterns: Sequence[re.Pattern[str]], before: str, ours: str, theirs: str
) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
    """Matches that begin at one place, and differ."""
    at = len(before)
    here, there = (
        [
            match
            for pattern in patterns
            for match in pattern.finditer(before + after)
            if match.start() <= at <= match.end()
        ]
        for after in (ours, theirs)
    )
    for one in here:
        for other in there:
            if one.start() == other.start() and one[0] != other[0]:
                yield one, other


def _mixed(word: str, least: int) -> bool:
    """Whether it has as many digits, and as many letters."""
    digits = sum(letter.isdigit() for letter in word)
    return least <= digits <= len(word) - least

"""Numbers and times as people and programs write them, and nothing that only looks like one."""

import math
import re

DURATION_S_MAX = 10 * 365 * 86_400.0
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_REAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_DURATION_PART = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ms|s|m|h)")
_DURATION = re.compile(rf"(-?)((?:{_DURATION_PART.pattern})*)")


def whole_number(text: str) -> int:
    """In decimal, and nothing else: Python's own takes 4_2 and digits of any script. Raises
    ValueError.
    """
    if not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return int(text)


def real_number(text: str) -> float:
    """The same, with a fraction or an exponent."""
    if not _REAL.fullmatch(text):
        raise ValueError(text)
    return float(text)


def duration_s(value: object) -> float | None:
    """Seconds, as Ollama and Go write them: 300, "300", "5m", "1h30m"; None is for ever, which is
    what anything below 0 means. Raises ValueError.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(value)
    try:
        seconds = real_number(value.strip()) if isinstance(value, str) else float(value)
    except OverflowError as error:
        raise ValueError("too long") from error
    except ValueError:
        match = _DURATION.fullmatch(str(value).strip())
        if not match or not match[2]:
            raise
        parts = _DURATION_PART.findall(match[2])
        seconds = sum(float(count) * _UNITS_S[unit] for count, unit in parts)
        seconds = -seconds if match[1] else seconds
    if not math.isfinite(seconds) or seconds > DURATION_S_MAX:
        raise ValueError(value)
    return None if seconds < 0 else seconds

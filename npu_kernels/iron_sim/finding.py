"""What a check says of a design."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    where: str
    what: str
    fix: str = ""
    hard: bool = True


def advice(rule: str, where: str, what: str, fix: str = "") -> Finding:
    return Finding(rule, where, what, fix, hard=False)

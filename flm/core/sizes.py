"""Bytes, in the unit that people are told them in."""

MIB = 2**20


def mib(count: int) -> str:
    return f"{count / MIB:,.0f} MiB"

"""Sizes and counts as people are told them."""

MIB = 2**20


def mib(count: int) -> str:
    return f"{count / MIB:,.0f} MiB"


def counted(count: int, noun: str) -> str:
    """`no tokens`, `1 token`, `1,024 tokens`."""
    return f"{f'{count:,}' if count else 'no'} {noun}{'' if count == 1 else 's'}"

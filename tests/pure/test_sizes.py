"""Counts and sizes in words."""

import pytest

from flm.core.sizes import counted


@pytest.mark.parametrize(
    ("count", "said"), [(0, "no tokens"), (1, "1 token"), (2, "2 tokens"), (1024, "1,024 tokens")]
)
def test_one_is_no_plural_and_nothing_is_none(count: int, said: str) -> None:
    assert counted(count, "token") == said

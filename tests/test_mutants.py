"""The tests of the prefix cache catch bugs: some are put in, in a copy of the tree."""

import pytest

from tests.mutants import survivors


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_deliberate_bug_is_caught() -> None:
    assert survivors() == []

"""Two sequences are alike up to their first difference, whatever their items are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flm.core.alike import common_length


@pytest.mark.parametrize("of_kind", [list, tuple, bytes, lambda ids: "".join(map(chr, ids))])
@given(left=st.lists(st.integers(0, 2)), right=st.lists(st.integers(0, 2)))
def test_common_length_counts_what_both_begin_with(of_kind, left, right) -> None:
    length = common_length(of_kind(left), of_kind(right))
    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]

"""A value's places in a stream, found from three streams, give the stream at any value between."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_kernels.txn import Patch, StreamFault, Words, Write, apply, encode, find
from tests.kernels.txn_streams import copy, descriptor


def stream(tokens: int) -> Words:
    """A length, an offset that runs backwards, and a parameter, each another way."""
    return encode(
        [
            *copy(64 * tokens),
            Patch(descriptor(3) + 4, 0, 2**20 - 512 * tokens),
            Write(2 << 20 | 0x400, tokens + 7),
        ]
    )


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 1024))
def test_every_value_between_is_built_by_patching(value: int) -> None:
    sites = find({tokens: stream(tokens) for tokens in (1, 2, 1024)})
    assert len(sites) == 4
    assert np.array_equal(apply(stream(1), sites, value), stream(value))


def test_what_is_applied_leaves_the_template_alone() -> None:
    template = stream(1)
    apply(template, find({tokens: stream(tokens) for tokens in (1, 2, 3)}), 2)
    assert np.array_equal(template, stream(1))


def test_a_value_that_was_not_enclosed_is_refused() -> None:
    sites = find({tokens: stream(tokens) for tokens in (1, 2, 9)})
    with pytest.raises(StreamFault, match="site-range"):
        apply(stream(1), sites, 10)


def test_two_values_are_too_few() -> None:
    with pytest.raises(StreamFault, match="three"):
        find({1: stream(1), 2: stream(2)})


def test_what_is_no_line_is_no_site() -> None:
    with pytest.raises(StreamFault, match="no line"):
        find({n: encode([Write(0x400, n * n)]) for n in (1, 2, 3)})


def test_a_stream_whose_shape_depends_on_the_value_is_refused() -> None:
    with pytest.raises(StreamFault, match="number of operations"):
        find({n: encode([Write(0x400, 0)] * n) for n in (1, 2, 3)})

"""Access patterns visit what numpy's strides visit, in that order, and move whole words."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from npu_kernels.iron_sim import DesignFault, simulate
from npu_kernels.iron_sim.aie.taps import TensorAccessPattern
from npu_kernels.iron_sim.aie.tiler import TensorTiler2D
from npu_kernels.iron_sim.walk import walk_of
from tests.kernels.designs import KERNELS, copying, tensor

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@st.composite
def patterns(draw: st.DrawFn) -> tuple[TensorAccessPattern, np.dtype[Any]]:
    """A pattern that cuts no word, and what its elements are."""
    dtype = np.dtype(draw(st.sampled_from(["u1", "i2", "f4", "i8"])))
    per_word = max(1, 4 // dtype.itemsize)
    sizes = draw(SIZES)
    strides = [draw(st.integers(0, 6)) * per_word for _ in sizes]
    if per_word > 1:
        sizes[-1], strides[-1] = sizes[-1] * per_word, 1
    offset = draw(st.integers(0, 8)) * per_word
    last = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    total = (last // per_word + 1 + draw(st.integers(0, 4))) * per_word
    return TensorAccessPattern((total,), offset, sizes, strides), dtype


def strided(tap: TensorAccessPattern, memory: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    steps = [s * memory.itemsize for s in tap.strides]
    return np.ascontiguousarray(as_strided(memory[tap.offset :], tap.sizes, steps)).reshape(-1)


@settings(deadline=None, max_examples=60)
@given(patterns(), st.data())
def test_a_walk_is_numpys_striding(
    pattern: tuple[TensorAccessPattern, np.dtype[Any]], data: st.DataObject
) -> None:
    tap, dtype = pattern
    total = tap.tensor_dims[0] * tap.tensor_dims[1]
    memory = np.random.default_rng(0).integers(0, 250, total).astype(dtype)
    walk = walk_of(tap.offset, tap.sizes, tap.strides, dtype.itemsize, "here")
    expected = strided(tap, memory).view(np.uint32)
    np.testing.assert_array_equal(memory.view(np.uint32)[walk.at(0, walk.count)], expected)
    # Any piece of it, as streams take them.
    start = data.draw(st.integers(0, walk.count))
    stop = data.draw(st.integers(start, walk.count))
    np.testing.assert_array_equal(
        memory.view(np.uint32)[walk.at(start, stop)], expected[start:stop]
    )
    assert list(tap.access_generator()) == list(strided(tap, np.arange(total)))


@pytest.mark.parametrize(
    ("sizes", "strides", "itemsize"),
    [([3], [1], 2), ([2, 4], [6, 1], 1), ([4, 2], [2, 2], 2), ([2, 2], [3, 1], 2), ([1], [1], 1)],
)
def test_nothing_smaller_than_a_word_moves(
    sizes: list[int], strides: list[int], itemsize: int
) -> None:
    with pytest.raises(DesignFault, match="granularity: here"):
        walk_of(0, sizes, strides, itemsize, "here")


@settings(deadline=None, max_examples=40)
@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_groups_of_tiles_are_visited_tile_by_tile(
    grid: tuple[int, int],
    tile: tuple[int, int],
    group: tuple[int, int],
    tile_columns: bool,
    group_columns: bool,
    iterate_columns: bool,
) -> None:
    grid = (grid[0] * group[0], grid[1] * group[1])
    tensor_dims = (grid[0] * tile[0], grid[1] * tile[1])
    taps = TensorTiler2D.group_tiler(
        tensor_dims,
        tile,
        group,
        tile_col_major=tile_columns,
        tile_group_col_major=group_columns,
        iter_col_major=iterate_columns,
    )
    matrix = np.arange(tensor_dims[0] * tensor_dims[1]).reshape(tensor_dims)
    # [group row, group column, tile row in it, tile column in it, row, column]
    blocks = matrix.reshape(
        grid[0] // group[0], group[0], tile[0], grid[1] // group[1], group[1], tile[1]
    ).transpose(0, 3, 1, 4, 2, 5)
    blocks = blocks.transpose(1, 0, 2, 3, 4, 5) if iterate_columns else blocks
    blocks = blocks.transpose(0, 1, 3, 2, 4, 5) if group_columns else blocks
    blocks = blocks.transpose(0, 1, 2, 3, 5, 4) if tile_columns else blocks
    visited = [list(tap.access_generator()) for tap in taps]
    assert visited == blocks.reshape(len(taps), -1).tolist()


def test_steps_and_repeats() -> None:
    taps = TensorTiler2D.step_tiler((2, 8), (1, 2), (1, 2), (1, 2), pattern_repeat=2)
    assert [list(tap.access_generator()) for tap in taps] == [
        [0, 1, 4, 5] * 2,
        [2, 3, 6, 7] * 2,
        [8, 9, 12, 13] * 2,
        [10, 11, 14, 15] * 2,
    ]


def test_a_pattern_ends_within_its_tensor() -> None:
    TensorAccessPattern((4, 4), 3, [4], [4])
    with pytest.raises(ValueError, match="element 16 of a tensor of 16"):
        TensorAccessPattern((4, 4), 4, [4], [4])


def test_a_design_moves_by_its_patterns() -> None:
    """In transposed blocks, out in reverse order of blocks."""

    def sequence(a: Any, b: Any, come: Any, leave: Any) -> None:
        come.fill(a, tap=TensorAccessPattern((16, 16), 0, [16, 16], [1, 16]))
        for n in range(4):
            last = n == 3
            tap = TensorAccessPattern((16, 16), 64 * (3 - n), [64], [1])
            leave.drain(b, tap=tap, wait=last)

    record = copying(64, 4, sequence=sequence)
    matrix, got = np.arange(256, dtype=np.int32), np.zeros(256, np.int32)
    simulate(record, [matrix, got], KERNELS)
    expected = matrix.reshape(16, 16).T.reshape(4, 64)[::-1]
    np.testing.assert_array_equal(got.reshape(4, 64), expected)


def test_types_are_read_as_iron_writes_them() -> None:
    record = copying(64, 4, dtype=np.uint8)
    assert str(record.fifo("in").type) == "uint8[64]"
    assert record.arguments[0].nbytes == 256
    assert tensor(3) == np.ndarray[(3,), np.dtype[np.int32]]

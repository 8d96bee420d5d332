"""A picture that is cut: sizes are the reference processor's, and all views within the budget."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flm.core.picture import BUCKETS, Picture, Sight
from flm.errors import BadRequest
from flm.text.sight import fitted, inputs, views
from flm.text.sight.scaled import ASPECT_MAX

SIGHT = Sight(
    "slices",
    patch=14,
    merge=4,
    side=70,
    pixels_min=0,
    pixels_max=448**2,
    placeholder="<i>",
    mark="<i>",
    before="<image>",
    after="</image>",
    slices=9,
    numbered=True,
)
# (width, height): what MiniCPM-V 4.6's processor makes of it: the whole, rows and columns, a slice.
REFERENCE = {
    (640, 480): ((504, 392), (1, 2), (392, 560)),
    (1920, 1080): ((616, 336), (2, 4), (448, 448)),
    (100, 100): ((448, 448), (0, 0), None),
    (448, 448): ((448, 448), (0, 0), None),
    (449, 448): ((448, 448), (1, 2), (336, 616)),
    (1000, 30): ((2576, 56), (0, 0), None),
    (33, 4000): ((56, 4928), (0, 0), None),
    (4032, 3024): ((504, 392), (3, 3), (504, 392)),
    (800, 1200): ((392, 560), (3, 2), (448, 448)),
    (1344, 1344): ((448, 448), (3, 3), (448, 448)),
}


def grey(width: int, height: int) -> Picture:
    return Picture(width, height, b"\x80" * (3 * width * height))


@pytest.mark.parametrize(("size", "wanted"), REFERENCE.items())
def test_sizes_are_the_reference_processors(
    size: tuple[int, int],
    wanted: tuple[tuple[int, int], tuple[int, int], tuple[int, int] | None],
) -> None:
    whole, *parts = views(fitted(grey(*size), SIGHT, tokens_max=1024, place="it"), SIGHT, 0)
    assert (whole.picture.width, whole.picture.height) == wanted[0]
    assert len(parts) == wanted[1][0] * wanted[1][1]
    assert {(each.picture.width, each.picture.height) for each in parts} <= {wanted[2]}
    assert sum("\n" in each.after for each in parts) == max(0, wanted[1][0] - 1)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 2000), st.integers(1, 2000), st.integers(4, 1024))
def test_all_views_are_within_the_budget_or_it_is_said(
    width: int, height: int, tokens: int
) -> None:
    if max(width, height) > ASPECT_MAX * min(width, height):
        with pytest.raises(BadRequest, match="too long for its width"):
            fitted(grey(width, height), SIGHT, tokens_max=tokens, place="it")
        return
    if tokens < ASPECT_MAX:  # a view may take more
        with suppress(BadRequest):
            fitted(grey(width, height), SIGHT, tokens_max=tokens, place="it")
        return
    parts = views(fitted(grey(width, height), SIGHT, tokens_max=tokens, place="it"), SIGHT, 0)
    assert 0 < sum(each.rows * each.columns for each in parts) <= tokens
    for each in parts:
        assert each.picture.width == each.columns * SIGHT.cell
        assert each.picture.height == each.rows * SIGHT.cell


def test_slices_are_parts_of_the_picture_row_by_row() -> None:
    size, sight = 112, replace(SIGHT, pixels_max=112**2)  # nothing is scaled but the whole
    levels = np.repeat(np.repeat(np.arange(6).reshape(2, 3) * 40, size, 0), size, 1)
    pixels = np.repeat(levels[..., None], 3, -1).astype(np.uint8)
    picture = Picture(3 * size, 2 * size, pixels.tobytes())
    _, *parts = views(fitted(picture, sight, tokens_max=1024, place="it"), sight, 3)
    assert [set(each.picture.rgb) for each in parts] == [{level * 40} for level in range(6)]
    assert [each.after for each in parts] == ["</slice>"] * 2 + ["</slice>\n"] + ["</slice>"] * 3


def test_patches_that_merge_stand_together_twice() -> None:
    sight = replace(SIGHT, patch=2, side=8, pixels_max=16 * 16)
    buckets = inputs(grey(16, 8), sight)[BUCKETS]  # four by eight patches, of eight places a side
    places = np.stack([buckets // 8 // 2, buckets % 8], axis=1).tolist()
    assert places[:4] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert places[4:8] == [[0, 2], [0, 3], [1, 2], [1, 3]]
    assert places[8:12] == [[2, 0], [2, 1], [3, 0], [3, 1]]
    assert places[16:18] == [[0, 4], [0, 5]]

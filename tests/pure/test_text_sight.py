"""A picture that is fitted has sides of whole cells, within its budget, and much of its shape."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flm.core.picture import (
    CELLS,
    CORNERS,
    FIRST_ID,
    SHARES,
    Picture,
    Placed,
    Sight,
    expanded,
    is_picture,
    placed,
)
from flm.engine.reader import HEIGHTS, LOW_TOKENS, Reader
from flm.errors import BadRequest
from flm.runner.seeing import positions_of
from flm.settings import Settings
from flm.text.sight import inputs, views
from flm.text.sight.cells import size_fitted
from flm.text.sight.scaled import ASPECT_MAX, lowered, require_shape

SIGHT = Sight("cells", 16, 2, 48, 256 * 256, 4096 * 4096, placeholder="<i>", mark="<i>")


def grey(width: int, height: int, value: int = 128) -> Picture:
    return Picture(width, height, bytes([value]) * (3 * width * height))


def at(start: int, picture: Picture) -> Placed:
    (view,) = views(picture, SIGHT, 0)
    return placed(view, start)


@settings(deadline=None, derandomize=True, database=None)
@given(st.integers(1, 9000), st.integers(1, 9000), st.integers(4, 16_384))
def test_sides_are_whole_cells_within_the_budget(width: int, height: int, tokens: int) -> None:
    if max(width, height) > ASPECT_MAX * min(width, height):
        with pytest.raises(BadRequest, match="too long for its width"):
            size_fitted(width, height, SIGHT, tokens, place="it")
        return
    fitted = size_fitted(width, height, SIGHT, tokens, place="it")
    assert all(side > 0 and side % SIGHT.cell == 0 for side in fitted)
    assert fitted[0] * fitted[1] <= max(tokens * SIGHT.cell**2, 2 * SIGHT.pixels_min)
    if (width < height) != (fitted[0] < fitted[1]):
        assert abs(fitted[0] - fitted[1]) <= SIGHT.cell


# (width, height) and what transformers' smart_resize makes of it, at 1,024 tokens.
REFERENCE = {
    (640, 480): (640, 480),
    (1920, 1080): (1344, 768),
    (100, 100): (256, 256),
    (1000, 30): (1504, 64),
    (33, 4000): (32, 4000),
    (3000, 40): (3008, 32),
    (1023, 1025): (1024, 1024),
}


@pytest.mark.parametrize(("size", "wanted"), REFERENCE.items())
def test_sizes_are_the_reference_processors(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    assert size_fitted(*size, SIGHT, 1024, place="it") == wanted


def test_low_detail_the_budget_and_the_size_class_each_make_it_smaller() -> None:
    def tokens(settings: Settings, detail: str | None = None, asked: int | None = None) -> int:
        seen = Reader("m", settings, SIGHT, asked).seen(grey(1600, 1600), "it", detail=detail)
        return at(0, seen).end

    usual = Settings(img_pre_resize=0)
    assert tokens(usual) == 1024
    assert tokens(usual, "low") == LOW_TOKENS
    assert tokens(usual, "high") == tokens(usual, "auto") == 1024
    assert tokens(replace(usual, image_max_tokens=100)) == 100
    assert tokens(replace(usual, image_max_tokens=100), asked=1024) == 100
    assert tokens(usual, asked=64) == 64
    assert tokens(replace(usual, img_pre_resize=1)) == (HEIGHTS[1] // SIGHT.cell) ** 2


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 300), st.integers(1, 300))
def test_a_picture_is_lowered_and_never_raised(width: int, height: int) -> None:
    small = lowered(Picture(width, height, b"\0" * (3 * width * height)), 96)
    assert small.height == min(height, 96)
    assert len(small.rgb) == 3 * small.width * small.height


@pytest.mark.parametrize("size", [(12, 2400), (13, 2600), (2400, 12), (7, 1399)])
@pytest.mark.parametrize("height", [each for each in HEIGHTS if each])
def test_what_is_not_too_long_is_not_lowered_to_what_is(size: tuple[int, int], height: int) -> None:
    small = lowered(grey(*size), height)
    require_shape(small.width, small.height, "it")
    assert small.height == min(size[1], height)


def test_neighbours_that_merge_stand_together() -> None:
    sight = replace(SIGHT, patch=2, merge=2, side=5)
    cells = inputs(grey(8, 4), sight)[CELLS].tolist()
    assert cells[:4] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert cells[4:] == [[0, 2], [0, 3], [1, 2], [1, 3]]


def test_shares_of_the_table_of_places_add_up_to_one() -> None:
    given = inputs(grey(96, 160), SIGHT)
    np.testing.assert_allclose(given[SHARES].sum(axis=1), 1, atol=1e-6)
    assert 0 <= given[CORNERS].min() <= given[CORNERS].max() < SIGHT.side**2


def test_ids_of_a_picture_are_of_its_pixels_and_of_no_vocabulary() -> None:
    first, same, other = (at(7, grey(256, 64, value)).ids for value in (1, 1, 2))
    assert first == same
    assert first[0] != other[0]
    assert len(set(first)) == 16
    assert all(is_picture(each) and FIRST_ID <= each < 2**31 for each in first)


def test_offsets_behind_a_picture_move_by_its_tokens_less_one() -> None:
    shown = (at(3, grey(64, 64)), at(10, grey(96, 32)))
    assert [expanded(each, shown) for each in (0, 3, 4, 7, 8)] == [0, 3, 7, 10, 13]


def test_positions_go_on_behind_the_longer_side_of_a_picture() -> None:
    shown = (at(2, grey(96, 64)), at(9, grey(32, 64)))
    wanted = np.array(
        [
            [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 8, 9],
            [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8, 9],
            [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 6, 8, 9],
        ]
    )
    for start in range(13):
        for end in range(start + 1, 14):
            assert np.array_equal(positions_of(shown, start, end), wanted[:, start:end])

"""What was decoded and made fit is kept: the same picture for as long as there is room, known by
its bytes and all that decides what becomes of them, and never more of it than there may be.
"""

import base64
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
from PIL import Image

from flm.core.picture import Picture
from flm.engine.album import Album
from flm.engine.reader import Reader
from flm.errors import BadRequest
from flm.settings import Settings
from tests.models.seen import made
from tests.pure.test_text_sight import SIGHT
from tests.pure.test_text_slices import SIGHT as SLICED

SETTINGS = Settings()


def file(picture: Picture, form: str = "PNG") -> bytes:
    out = BytesIO()
    Image.frombytes("RGB", (picture.width, picture.height), picture.rgb).save(out, form)
    return out.getvalue()


def shot(number: int, width: int = 40, height: int = 30) -> bytes:
    return file(Picture(width, height, bytes([number]) * (3 * width * height)))


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def reader(album: Album, **other: Any) -> Reader:
    given = {"settings": SETTINGS, "sight": SIGHT} | other
    return Reader("m", album=album.visit(), **given)


@pytest.mark.parametrize("sight", [SIGHT, SLICED], ids=["cells", "slices"])
def test_the_second_turn_decodes_nothing_and_sees_the_same(sight: Any) -> None:
    shown = [in_base64(file(each, form)) for each in made([(640, 480), (30, 200)])
             for form in ("PNG", "JPEG", "WEBP")]  # fmt: skip
    alone = [Reader("m", SETTINGS, sight).of(text, "it") for text in shown]
    album = Album(2**26)
    first, second = (reader(album, sight=sight) for _ in range(2))
    assert [first.of(text, "it") for text in shown] == alone
    assert first.taken.cpu_s > 0
    assert [second.of(text, "it") for text in shown] == alone
    assert (album.made, second.taken.cpu_s) == (len(shown), 0)
    wrapped = "data:image/png;base64," + "\n".join(shown[0])
    assert second.at(wrapped, "it") == alone[0]
    assert album.made == len(shown)
    assert album.bytes_kept == sum(held(each) for each in alone)
    album.check()


def held(picture: Picture) -> int:
    return len(picture.rgb) + sum(len(part.rgb) for part in getattr(picture, "slices", ()))


def test_all_that_decides_the_outcome_tells_pictures_apart() -> None:
    text, album = in_base64(shot(1, 1600, 1600)), Album(2**28)
    url = f"data:;base64,{text}"
    asks: Sequence[Callable[[Album], Picture]] = [
        lambda album: reader(album).at(url, "it"),
        lambda album: reader(album).at(url, "it", detail="low"),
        lambda album: reader(album, tokens_max=100).at(url, "it"),
        lambda album: reader(album, settings=replace(SETTINGS, img_pre_resize=1)).at(url, "it"),
        lambda album: reader(album, settings=replace(SETTINGS, image_max_tokens=90)).at(url, "it"),
        lambda album: reader(album, sight=replace(SIGHT, patch=14)).at(url, "it"),
        lambda album: reader(album, sight=SLICED).at(url, "it"),
    ]
    alone = [ask(Album()) for ask in asks]
    assert len({(type(each), each.width, each.height) for each in alone}) == len(asks)
    for _ in range(2):
        assert [ask(album) for ask in asks] == alone
    assert album.made == len(asks)


def test_limits_hold_for_what_was_seen_under_wider_ones() -> None:
    data, album = shot(1), Album(2**26)
    reader(album).shown(data, "it")
    for tight in ({"image_bytes_max": len(data) - 1}, {"image_pixels_max": 40 * 30 - 1}):
        with pytest.raises(BadRequest):
            reader(album, settings=replace(SETTINGS, **tight)).shown(data, "it")
        with pytest.raises(BadRequest):
            reader(album, settings=replace(SETTINGS, **tight)).of(in_base64(data), "it")


def test_who_was_asked_for_longest_ago_goes_first() -> None:
    one = Reader("m", SETTINGS, SIGHT).shown(shot(0), "it").bytes_held
    album = Album(3 * one + 5)
    for number in (0, 1, 2, 0, 3):  # 1 goes
        reader(album).shown(shot(number), "it")
    assert (album.made, album.bytes_kept) == (4, 3 * one)
    for number in (0, 2, 3):
        reader(album).shown(shot(number), "it")
    assert album.made == 4
    reader(album).shown(shot(1), "it")
    assert album.made == 5
    album.check()


def test_of_a_conversation_that_is_too_long_as_much_stays_as_fits() -> None:
    one = Reader("m", SETTINGS, SIGHT).shown(shot(0), "it").bytes_held
    album, turns = Album(3 * one), 4
    for _ in range(turns):
        turn = reader(album)
        for number in range(5):
            turn.shown(shot(number), "it")
    assert album.made == 5 + (turns - 1) * 2
    other = reader(album)
    other.shown(shot(9), "it")  # which another request makes way for
    other.shown(shot(9), "it")
    assert album.made == 5 + (turns - 1) * 2 + 1
    album.check()


def test_one_larger_than_all_pushes_nobody_out_and_damaged_ones_are_not_kept() -> None:
    small, large = shot(1), shot(2, 1600, 1000)
    album = Album(Reader("m", SETTINGS, SIGHT).shown(small, "it").bytes_held)
    for data in (small, large, small, large):
        reader(album).shown(data, "it")
    assert album.made == 3
    for _ in range(2):
        with pytest.raises(BadRequest, match="damaged"):
            reader(album).shown(large[:200], "it")
    assert album.made == 3


def test_it_stays_within_its_bound_whoever_asks_at_once() -> None:
    one = Reader("m", SETTINGS, SIGHT).shown(shot(0), "it")
    files = [shot(number) for number in range(8)]
    album = Album(4 * one.bytes_held)

    def turn(seed: int) -> bool:
        asking, drawn = reader(album), random.Random(seed)
        for _ in range(10):
            number = drawn.randrange(len(files))
            seen = asking.shown(files[number], "it")
            if seen.rgb[:3] != bytes([number]) * 3:
                return False
            album.check()
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(turn, range(24)))
    assert album.bytes_kept == 4 * one.bytes_held


def test_a_request_has_no_more_pictures_than_it_may_whether_they_are_kept_or_not() -> None:
    """However small their files: what they are made into is not."""
    few, album = replace(SETTINGS, images_max=3), Album(2**26)
    for text in (in_base64(shot(1)), in_base64(shot(2))):
        asked = reader(album, settings=few)
        for _ in range(3):
            asked.of(text, "it")
        with pytest.raises(BadRequest, match="3 may be in a request") as caught:
            asked.of(text, "it")
        assert caught.value.param == "it"
        with pytest.raises(BadRequest, match="3 may be in a request"):
            asked.shown(Image.new("RGB", (9, 9)), "it")
    assert album.made == 2


@pytest.mark.parametrize("sight", [SIGHT, SLICED], ids=["cells", "slices"])
def test_a_picture_too_long_is_refused_by_the_size_that_was_sent(sight: Any) -> None:
    with pytest.raises(BadRequest, match="1 by 4,000 pixels"):
        reader(Album(), sight=sight).shown(shot(1, 1, 4000), "it")

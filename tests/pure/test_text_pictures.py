"""Pictures: the same pixels whatever they came in, and nothing beyond the limits."""

import base64
import struct
import tracemalloc
from io import BytesIO
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from flm.core.picture import Picture, Sight
from flm.errors import BadRequest
from flm.text.pictures import PictureLimits, Taken, decoded, file_at, file_of, flattened
from flm.text.sight import fitted
from tests.pure import drawn as made

EXPECTED = Path(__file__).resolve().parents[1] / "fixtures" / "drawn" / "expected.npz"
FILES = made.files()
LIMITS = PictureLimits(bytes_max=100_000, pixels_max=10_000, cpu_s_max=10)
PLACE = "messages[2].content[1]"


def drawn(mode: str = "RGB", size: tuple[int, int] = (6, 4)) -> Image.Image:
    """No two of its pixels are alike."""
    image = Image.new(mode, size)
    bands = len(image.getbands())
    for index in range(size[0] * size[1]):
        value = tuple((index * step) % 256 for step in (7, 31, 53, 97)[:bands])
        image.putpixel((index % size[0], index // size[0]), value if bands > 1 else value[0])
    return image


def file(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    out = BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def refused(data: bytes, limits: PictureLimits = LIMITS) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        decoded(data, limits, place=PLACE)
    assert caught.value.param == PLACE
    assert caught.value.message.startswith(f"{PLACE}, an image, ")
    return caught.value


def test_pixels_are_those_that_were_drawn() -> None:
    image = drawn()
    picture = decoded(file(image), LIMITS, place=PLACE)
    assert (picture.width, picture.height) == (6, 4)
    assert picture.rgb == image.tobytes()


def test_the_same_pixels_are_the_same_picture_whatever_file_they_came_in() -> None:
    image = drawn()
    files = [file(image), file(image, compress_level=0), file(image, "WEBP", lossless=True)]
    identities = {decoded(each, LIMITS, place=PLACE).identity for each in files}
    assert len(identities) == 1
    others = [drawn(size=(4, 6)), drawn().transpose(Image.Transpose.ROTATE_180)]
    assert len(identities | {decoded(file(o), LIMITS, place=PLACE).identity for o in others}) == 3


def levels(picture: Picture) -> np.ndarray[Any, np.dtype[np.int64]]:
    shape = (picture.height, picture.width, 3)
    return np.frombuffer(picture.rgb, np.uint8).reshape(shape).astype(np.int64)


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_what_the_reference_makes_of_it(name: str) -> None:
    with np.load(EXPECTED) as expected:
        wanted = expected[f"opened {name}"].astype(np.int64)
    got = levels(decoded(FILES[name], LIMITS, place=PLACE))
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() <= 1


# As tests/fixtures/drawn.py has the reference processor.
SIGHT = Sight("cells", 4, 2, 8, 4 * 8 * 8, 48 * 8 * 8, placeholder="", mark="")


@pytest.mark.parametrize(
    "size", [(7, 5), (24, 16), (37, 91), (8, 40), (64, 64), (200, 9), (3, 140), (120, 77)]
)
def test_every_picture_is_fitted_as_the_reference_does(size: tuple[int, int]) -> None:
    with np.load(EXPECTED) as expected:
        wanted = expected["fitted {} by {}".format(*size)].astype(np.int64)
    picture = decoded(file(made.image(size=size)), LIMITS, place=PLACE)
    got = levels(fitted(picture, SIGHT, tokens_max=1000, place=PLACE))
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() <= 1


@pytest.mark.parametrize("way", range(1, 9))
def test_a_picture_stands_as_its_camera_says(way: int) -> None:
    """Where the first row and column of what is stored come to lie."""
    rows = {1: "top", 2: "top", 3: "bottom", 4: "bottom"}
    rows |= {5: "left", 6: "right", 7: "right", 8: "left"}
    columns = {1: "left", 2: "right", 3: "right", 4: "left"}
    columns |= {5: "top", 6: "top", 7: "bottom", 8: "bottom"}
    stored = levels(decoded(made.turned("PNG", 1), LIMITS, place=PLACE))
    got = levels(decoded(made.turned("PNG", way), LIMITS, place=PLACE))
    edges = {"top": got[0], "bottom": got[-1], "left": got[:, 0], "right": got[:, -1]}
    for side, first in ((rows[way], stored[0]), (columns[way], stored[:, 0])):
        assert sorted(edges[side].tolist()) == sorted(first.tolist())


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow's
def test_where_what_a_camera_says_cannot_be_read_the_picture_can() -> None:
    head = b"Exif\0\0"
    for broken in (b"", b"II*\0\x08\0\0\0", b"II*\0\x08\0\0\0\xff\xff" + b"\x12\x01" * 9):
        data = file(drawn(), "JPEG", quality=95)
        body = head + broken
        marked = data[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + data[2:]
        plain = decoded(data, LIMITS, place=PLACE)
        assert decoded(marked, LIMITS, place=PLACE) == plain


def test_grey_of_16_bits_is_scaled_and_not_cut_off() -> None:
    deep = made.waves(bits=16, bands=1)
    got = levels(decoded(made.png(deep, made.GREY, bits=16), LIMITS, place=PLACE))
    assert np.array_equal(got, np.repeat(deep >> 8, 3, axis=-1))
    clear = (b"tRNS", struct.pack(">H", int(deep[3, 5, 0])))
    data = made.png(deep, made.GREY, bits=16, before=(clear,))
    got = levels(decoded(data, LIMITS, place=PLACE))
    see_through = deep[..., 0] == deep[3, 5, 0]
    assert (got[see_through] == 255).all()
    assert np.array_equal(got[~see_through][:, 0], deep[..., 0][~see_through] >> 8)


@pytest.mark.parametrize(
    "name", ["png moving", "webp moving", "gif moving", "png moving aside", "jpeg of two"]
)
def test_of_a_moving_picture_the_first_frame_is_taken(name: str) -> None:
    first = made.image().quantize(16) if name.startswith("gif") else made.image()
    kind = "JPEG" if name.startswith("jpeg") else "PNG"
    assert decoded(FILES[name], LIMITS, place=PLACE) == decoded(
        file(first, kind), LIMITS, place=PLACE
    )


def test_what_can_be_seen_through_stands_on_white() -> None:
    clear = Image.new("RGBA", (1, 1), (9, 9, 9, 0))
    assert decoded(file(clear), LIMITS, place=PLACE).rgb == b"\xff\xff\xff"


def test_base64_and_data_urls_give_the_same() -> None:
    data = file(drawn())
    text = base64.b64encode(data).decode()
    wrapped = "\n".join(text[at : at + 60] for at in range(0, len(text), 60))
    assert file_of(wrapped, LIMITS, place=PLACE) == data
    for head in ("data:image/png;base64,", "DATA:;BASE64,", "data:image/png;name=a.png;base64,"):
        assert file_at(head + text, LIMITS, place=PLACE) == data


@pytest.mark.parametrize(
    "address", ["https://example.org/a.png", "file:///etc/passwd", "data:image/png,AAAA", ""]
)
def test_nothing_is_fetched(address: str) -> None:
    with pytest.raises(BadRequest, match="not fetched") as caught:
        file_at(address, LIMITS, place=PLACE)
    assert caught.value.param == PLACE


def test_each_limit_is_told_by_its_name() -> None:
    wide = file(drawn(size=(101, 100)))
    assert "image-pixels-max" in refused(wide).fix
    tight = PictureLimits(bytes_max=100, pixels_max=10_000, cpu_s_max=10)
    with pytest.raises(BadRequest) as caught:
        file_at(url(wide), tight, place=PLACE)
    assert "image-bytes-max" in caught.value.fix
    assert "image-bytes-max" in refused(wide, tight).fix


def slow(scans: int, side: int = 1500) -> bytes:
    """A small progressive JPEG that says its last scan again and again."""
    data = file(Image.new("RGB", (side, side), (99, 150, 20)), "JPEG", progressive=True)
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * scans + data[-2:]


def test_a_file_that_takes_for_ever_is_given_up() -> None:
    data = slow(20_000)
    limits = PictureLimits(bytes_max=2**20, pixels_max=2**22, cpu_s_max=0.3)
    start_s = thread_time()
    assert "image-cpu-s-max" in refused(data, limits).fix
    assert thread_time() - start_s < 3  # all of it takes 20 s and more


def test_the_pictures_of_a_request_share_their_time() -> None:
    data, taken = file(drawn()), Taken()
    limits = PictureLimits(bytes_max=2**20, pixels_max=2**22, cpu_s_max=5, taken=taken)
    decoded(data, limits, place=PLACE)
    assert 0 < taken.cpu_s < 5
    taken.cpu_s = 5
    assert "take more than 5 s" in refused(data, limits).message


@pytest.mark.parametrize("side", [8_000, 11_000, 60_000])
@pytest.mark.parametrize("form", ["PNG", "GIF"])
def test_whatever_size_a_head_promises_is_told_by_the_limits_name(form: str, side: int) -> None:
    data, size = bytearray(file(drawn().quantize(8), form)), struct.pack("<2H", side, side)
    if form == "PNG":
        head = b"IHDR" + struct.pack(">2I", side, side) + bytes(data[24:29])
        data[12:33] = made.chunk(b"IHDR", head[4:])[4:]
    else:
        data[6:10] = size
    assert "image-pixels-max" in refused(bytes(data)).fix


def test_a_head_that_promises_too_much_is_refused_unread() -> None:
    data = bytearray(file(drawn()))
    data[16:24] = (60_000).to_bytes(4, "big") * 2  # IHDR's width and height
    refused(bytes(data))


@pytest.mark.parametrize(
    "data", [b"", b"GIF89a", b"not an image", b"\x89PNG\r\n\x1a\n", b"BM6\0\0\0"]
)
def test_what_is_no_picture_is_said_to_be_none(data: bytes) -> None:
    refused(data)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
@pytest.mark.parametrize("share", [0.3, 0.7, 0.97])
def test_half_a_file_is_no_picture(form: str, share: float) -> None:
    whole = file(made.image(size=(60, 40)), form)
    assert "send a whole file" in refused(whole[: int(len(whole) * share)]).fix


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_but_never_fails(form: str, data: st.DataObject) -> None:
    whole = bytearray(file(drawn(), form))
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole[at] ^= data.draw(st.integers(1, 255))
    else:
        del whole[at:]
    try:
        picture = decoded(bytes(whole), LIMITS, place=PLACE)
    except BadRequest:
        return
    assert len(picture.rgb) == 3 * picture.width * picture.height <= 3 * LIMITS.pixels_max


@pytest.mark.parametrize("blanks", ["\n", " ", "\t\r\n\v\f"])
def test_base64_takes_no_more_memory_however_often_it_is_broken(blanks: str) -> None:
    data = bytes(range(256)) * 300
    text = blanks.join(base64.b64encode(data).decode())
    tight = PictureLimits(bytes_max=len(text), pixels_max=1, cpu_s_max=10)
    tracemalloc.start()
    try:
        assert file_of(text, tight, place=PLACE) == data
        assert tracemalloc.get_traced_memory()[1] < 3 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "image",
    [
        Image.new("RGB", (0, 0)),
        Image.new("RGB", (0, 5)),
        Image.new("La", (3, 3)),
        Image.open(BytesIO(file(drawn())[:-30])),
    ],
)
def test_what_a_program_gives_that_cannot_be_seen_is_refused(image: Image.Image) -> None:
    with pytest.raises(BadRequest) as caught:
        flattened(image, LIMITS, place=PLACE)
    assert caught.value.param == PLACE

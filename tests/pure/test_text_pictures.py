"""Pictures: the same pixels whatever they came in, and nothing beyond the limits."""

import base64
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from flm.errors import BadRequest
from flm.text.pictures import PictureLimits, decoded, picture_at, picture_of

LIMITS = PictureLimits(bytes_max=100_000, pixels_max=10_000)
PLACE = "messages[2].content[1]"
ROTATED = 6  # EXIF: the top is at the right
ORIENTATION = 0x0112


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


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_a_picture_stands_as_its_camera_says(form: str) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = ROTATED
    turned = decoded(file(drawn(), form, exif=exif), LIMITS, place=PLACE)
    assert (turned.width, turned.height) == (4, 6)
    if form == "PNG":
        upright = drawn().transpose(Image.Transpose.ROTATE_270)
        assert turned == decoded(file(upright), LIMITS, place=PLACE)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "CMYK"])
def test_all_kinds_of_pixels_become_rgb(mode: str) -> None:
    form = "JPEG" if mode == "CMYK" else "PNG"
    source = drawn("RGB").convert(mode) if mode in ("P", "1", "CMYK") else drawn(mode)
    picture = decoded(file(source, form), LIMITS, place=PLACE)
    assert len(picture.rgb) == 3 * picture.width * picture.height


def test_what_can_be_seen_through_stands_on_white() -> None:
    clear = Image.new("RGBA", (1, 1), (9, 9, 9, 0))
    assert decoded(file(clear), LIMITS, place=PLACE).rgb == b"\xff\xff\xff"


def test_base64_and_data_urls_give_the_same() -> None:
    data = file(drawn())
    text = base64.b64encode(data).decode()
    wrapped = "\n".join(text[at : at + 60] for at in range(0, len(text), 60))
    expected = decoded(data, LIMITS, place=PLACE)
    assert picture_of(wrapped, LIMITS, place=PLACE) == expected
    for head in ("data:image/png;base64,", "DATA:;BASE64,", "data:image/png;name=a.png;base64,"):
        assert picture_at(head + text, LIMITS, place=PLACE) == expected


@pytest.mark.parametrize(
    "address", ["https://example.org/a.png", "file:///etc/passwd", "data:image/png,AAAA", ""]
)
def test_nothing_is_fetched(address: str) -> None:
    with pytest.raises(BadRequest, match="not fetched") as caught:
        picture_at(address, LIMITS, place=PLACE)
    assert caught.value.param == PLACE


def test_each_limit_is_told_by_its_name() -> None:
    wide = file(drawn(size=(101, 100)))
    assert "image-pixels-max" in refused(wide).fix
    tight = PictureLimits(bytes_max=100, pixels_max=10_000)
    with pytest.raises(BadRequest) as caught:
        picture_at(url(wide), tight, place=PLACE)
    assert "image-bytes-max" in caught.value.fix
    moving = file(drawn(), "WEBP", save_all=True, append_images=[drawn(size=(6, 4)).rotate(180)])
    assert "2 frames" in refused(moving).message


def test_a_head_that_promises_too_much_is_refused_unread() -> None:
    data = bytearray(file(drawn()))
    data[16:24] = (60_000).to_bytes(4, "big") * 2  # IHDR's width and height
    refused(bytes(data))


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"not an image", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_picture_is_said_to_be_none(data: bytes) -> None:
    refused(data)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
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

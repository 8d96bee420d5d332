"""Pictures in prompts: from base64 and data URLs to pixels, within limits. Nothing is fetched."""

import base64
import binascii
import re
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

from flm.core.picture import Picture
from flm.errors import BadRequest

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP")
FRAMES_MAX = 1
WHITE = (255, 255, 255)  # behind what can be seen through
_DATA_URL = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)
SEND = 'send it as "data:image/png;base64,...": png, jpeg or webp'


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """Of a file as it is sent, and of what it unfolds to."""

    bytes_max: int
    pixels_max: int


def picture_at(url: str, limits: PictureLimits, *, place: str) -> Picture:
    """Of a data URL. Raises BadRequest, for any other too: nothing is fetched."""
    head = _DATA_URL.match(url)
    if head is None:
        raise _refusal(place, f"is {url[:16]!r}…, and images are not fetched", SEND)
    return picture_of(url[head.end() :], limits, place=place)


def picture_of(text: str, limits: PictureLimits, *, place: str) -> Picture:
    """Of base64. Raises BadRequest."""
    if len(text) * 3 // 4 > limits.bytes_max:
        fix = f"send up to {limits.bytes_max:,} bytes, or raise image-bytes-max in flm.toml"
        raise _refusal(place, "is too large a file", fix)
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _refusal(place, f"is not base64: {error}", SEND) from error
    return decoded(data, limits, place=place)


def decoded(data: bytes, limits: PictureLimits, *, place: str) -> Picture:
    """Upright as its camera says, on white. Raises BadRequest."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            _check(image, limits, place)
            image.load()
            flat = _on_white(ImageOps.exif_transpose(image))
    except BadRequest:
        raise
    except UnidentifiedImageError as error:
        raise _refusal(place, "is none of png, jpeg and webp", SEND) from error
    except Exception as error:  # Pillow's are of many kinds
        raise _refusal(place, f"is damaged: {str(error)[:80]}", "send a whole file") from error
    return Picture(flat.width, flat.height, flat.tobytes())


def _check(image: "Image.Image", limits: PictureLimits, place: str) -> None:
    """By what its head says, before any of it is unfolded."""
    if image.width * image.height > limits.pixels_max:
        fix = f"scale it to {limits.pixels_max:,} pixels, or raise image-pixels-max in flm.toml"
        raise _refusal(place, f"has {image.width:,} by {image.height:,} pixels", fix)
    frames = getattr(image, "n_frames", 1)
    if frames > FRAMES_MAX:
        raise _refusal(place, f"moves: it has {frames:,} frames", "send one of them")


def _on_white(image: "Image.Image") -> "Image.Image":
    from PIL import Image

    if not image.has_transparency_data:
        return image.convert("RGB")
    clear = image.convert("RGBA")
    flat = Image.new("RGB", clear.size, WHITE)
    flat.paste(clear, mask=clear.getchannel("A"))
    return flat


def _refusal(place: str, what: str, fix: str) -> BadRequest:
    return BadRequest(f"{place}, an image, {what}", fix=fix, param=place)

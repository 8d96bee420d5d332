"""Pictures in prompts: from base64 and data URLs to pixels, within limits. Nothing is fetched.

They become what the reference processors see (transformers' load_image: upright, RGB), but that
what can be seen through stands on white, as with Qwen's own tools, vLLM and Ollama, where
transformers drops what says so; and that grey of 16 bits is scaled to 8, where it is cut off.
"""

import base64
import binascii
import re
from dataclasses import dataclass, field
from io import BytesIO
from time import thread_time
from typing import TYPE_CHECKING

from flm.core.picture import Picture
from flm.errors import BadRequest

if TYPE_CHECKING:
    from PIL import Image

HEAD_BYTES = 12  # that tell a picture by
_HEAD = re.compile(rb"\x89PNG|\xff\xd8\xff|RIFF....WEBP|GIF8", re.DOTALL)
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
BLANKS = b" \t\r\n\v\f"  # that base64 may be broken by, after each of its characters
WHITE = (255, 255, 255)  # behind what can be seen through
BLOCK_BYTES = 2048  # what a decoder gets before it is asked how long it took
ORIENTATION = 0x0112  # EXIF's number for it
_DATA_URL = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)
SEND = 'send it as "data:image/png;base64,...": png, jpeg, webp or gif'


@dataclass(slots=True)
class Taken:
    """What the pictures of one request took so far, on the thread that decodes them; and how many
    these are.
    """

    cpu_s: float = 0.0
    count: int = 0


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """Of a file as it is sent, of what it unfolds to, and of what all of a request take."""

    bytes_max: int
    pixels_max: int
    cpu_s_max: float
    taken: Taken = field(default_factory=Taken)


def file_at(url: str, limits: PictureLimits, *, place: str) -> bytes:
    """In a data URL. Raises BadRequest, for any other too: nothing is fetched."""
    head = _DATA_URL.match(url)
    if head is None:
        raise _refusal(place, f"is {url[:16]!r}…, and images are not fetched", SEND)
    return file_of(url[head.end() :], limits, place=place)


def file_of(text: str, limits: PictureLimits, *, place: str) -> bytes:
    """In base64. Raises BadRequest."""
    if len(text) * 3 // 4 > limits.bytes_max:
        raise _too_large(limits, place)
    try:
        return base64.b64decode(text.encode().translate(None, BLANKS), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _refusal(place, f"is not base64: {error}", SEND) from error


def decoded(data: bytes, limits: PictureLimits, *, place: str) -> Picture:
    """Upright as its camera says, on white; of a moving one the first frame. Raises BadRequest."""
    from PIL import Image, UnidentifiedImageError

    if len(data) > limits.bytes_max:
        raise _too_large(limits, place)
    file = _Timed(data, limits, place)
    try:
        with Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > limits.pixels_max:  # as its head says
                raise _too_wide(f"{image.width:,} by {image.height:,}", limits, place)
            image.decodermaxblock = BLOCK_BYTES
            image.load()
            return _picture_of(image)
    except BadRequest:
        raise
    except UnidentifiedImageError as error:
        raise _refusal(place, "is none of png, jpeg, webp and gif", SEND) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_wide("far too many", limits, place) from error
    except Exception as error:  # Pillow's are of many kinds
        raise _refusal(place, f"is damaged: {str(error)[:80]}", "send a whole file") from error
    finally:
        file.stop()


def looks_like_picture(head: bytes) -> bool:
    """By the first HEAD_BYTES of a file."""
    return _HEAD.match(head) is not None


def flattened(image: "Image.Image", limits: PictureLimits, *, place: str) -> Picture:
    """Of what Pillow holds already. Raises BadRequest."""
    if image.width * image.height > limits.pixels_max:
        raise _too_wide(f"{image.width:,} by {image.height:,}", limits, place)
    if not (image.width and image.height):
        raise _refusal(place, "has no pixels", "give one that has some")
    try:
        return _picture_of(image)
    except Exception as error:  # it may be read only now; Pillow's are of many kinds
        raise _refusal(place, f"cannot be read: {str(error)[:80]}", "give a whole one") from error


def _picture_of(image: "Image.Image") -> Picture:
    flat = _on_white(_upright(_eight_bits(image)))
    return Picture(flat.width, flat.height, flat.tobytes())


class _Timed(BytesIO):
    """A file that refuses to be read on once the request's pictures have had their time.

    Pixels bound what a decoder takes, but for files that say them again and again (a progressive
    JPEG may have a million scans) or that hide them in a million chunks.
    """

    def __init__(self, data: bytes, limits: PictureLimits, place: str) -> None:
        super().__init__(data)
        self._limits, self._place = limits, place
        self._start_s = thread_time()

    def read(self, size: int | None = -1) -> bytes:
        most = self._limits.cpu_s_max
        if self._limits.taken.cpu_s + thread_time() - self._start_s > most:
            raise _refusal(
                self._place,
                f"and those before it take more than {most:g} s to be decoded",
                "send fewer or smaller ones, or raise image-cpu-s-max in flm.toml",
            )
        return super().read(size)

    def stop(self) -> None:
        self._limits.taken.cpu_s += thread_time() - self._start_s


def _upright(image: "Image.Image") -> "Image.Image":
    """As ImageOps.exif_transpose, but that a tag which cannot be read turns nothing."""
    from PIL import Image

    way = Image.Transpose
    ways = {
        2: way.FLIP_LEFT_RIGHT,
        3: way.ROTATE_180,
        4: way.FLIP_TOP_BOTTOM,
        5: way.TRANSPOSE,
        6: way.ROTATE_270,
        7: way.TRANSVERSE,
        8: way.ROTATE_90,
    }
    try:
        turn = ways.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # of many kinds, and the pixels are fine
        turn = None
    return image if turn is None else image.transpose(turn)


def _eight_bits(image: "Image.Image") -> "Image.Image":
    """Grey of 16 bits by its upper 8, as Pillow itself has colours of 16."""
    import numpy as np
    from PIL import Image

    if not image.mode.startswith("I;16"):
        return image
    deep = np.asarray(image)
    grey = Image.fromarray((deep >> 8).astype(np.uint8))
    if (clear := image.info.get("transparency")) is not None:
        grey.putalpha(Image.fromarray(np.where(deep == clear, 0, 255).astype(np.uint8)))
    return grey


def _on_white(image: "Image.Image") -> "Image.Image":
    from PIL import Image

    if not image.has_transparency_data:
        return image.convert("RGB")
    clear = image.convert("RGBA")
    flat = Image.new("RGB", clear.size, WHITE)
    flat.paste(clear, mask=clear.getchannel("A"))
    return flat


def _too_large(limits: PictureLimits, place: str) -> BadRequest:
    fix = f"send up to {limits.bytes_max:,} bytes, or raise image-bytes-max in flm.toml"
    return _refusal(place, "is too large a file", fix)


def _too_wide(pixels: str, limits: PictureLimits, place: str) -> BadRequest:
    fix = f"scale it to {limits.pixels_max:,} pixels, or raise image-pixels-max in flm.toml"
    return _refusal(place, f"has {pixels} pixels", fix)


def _refusal(place: str, what: str, fix: str) -> BadRequest:
    return BadRequest(f"{place}, an image, {what}", fix=fix, param=place)

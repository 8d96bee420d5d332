"""Pictures of another size, and their colours as numbers: what all kinds of sight begin with."""

from typing import Any

import numpy as np
import numpy.typing as npt

from flm.core.picture import Picture, Sight
from flm.errors import BadRequest

ASPECT_MAX = 200  # of its sides


def require_shape(width: int, height: int, place: str) -> None:
    """Raises BadRequest for a picture that is far too long."""
    if max(width, height) > ASPECT_MAX * min(width, height):
        raise BadRequest(
            f"{place} is an image of {width:,} by {height:,} pixels, too long for its width",
            fix=f"send one whose longer side is up to {ASPECT_MAX} times the shorter",
            param=place,
        )


def scaled(picture: Picture, width: int, height: int, *, smooth: bool = True) -> Picture:
    """Bicubic, or bilinear where a model's reference processor has it so."""
    from PIL import Image

    if (width, height) == (picture.width, picture.height):
        return picture
    image = Image.frombytes("RGB", (picture.width, picture.height), picture.rgb)
    how = Image.Resampling.BICUBIC if smooth else Image.Resampling.BILINEAR
    image = image.resize((width, height), how)
    return Picture(width, height, image.tobytes())


def lowered(picture: Picture, height_max: int | None) -> Picture:
    """No higher than that, with the sides' proportion; one that is not too long stays so."""
    if height_max is None or picture.height <= height_max:
        return picture
    width = round(picture.width * height_max / picture.height)
    width = max(width, -(-height_max // ASPECT_MAX))
    return scaled(picture, width, height_max)


def colours(picture: Picture, sight: Sight) -> npt.NDArray[Any]:
    """[height, width, 3] float32, as the tower was trained to see them."""
    pixels = np.frombuffer(picture.rgb, np.uint8).reshape(picture.height, picture.width, 3)
    levels = pixels.astype(np.float32) / 255
    mean, deviation = (np.array(each, np.float32) for each in (sight.mean, sight.deviation))
    found: npt.NDArray[Any] = (levels - mean) / deviation
    return found

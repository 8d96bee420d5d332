"""Gemma 3's way: whatever the picture's shape, scaled to one square, in patches row by row.

Source: transformers, Gemma3ImageProcessor, without its pan and scan, which is off as published.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flm.core.picture import PATCHES, Picture, Sight, View
from flm.errors import BadRequest
from flm.text.sight.scaled import colours, scaled

Array = npt.NDArray[Any]


def fitted(picture: Picture, sight: Sight, *, tokens_max: int, place: str) -> Picture:
    """The square. It is always as many tokens: raises BadRequest where they are too many."""
    tokens = (sight.side // sight.merge) ** 2
    if tokens > tokens_max:
        raise BadRequest(
            f"{place} is an image, each of which the model reads as {tokens} tokens, and "
            f"{tokens_max} may be one",
            fix=f"let image-max-tokens be {tokens}, or more",
            param=place,
        )
    side = sight.side * sight.patch
    return scaled(picture, side, side, smooth=False)


def views(picture: Picture, sight: Sight, number: int) -> tuple[View, ...]:
    """The picture, in one."""
    side = sight.side // sight.merge
    return (View(picture, side, side, sight.before, sight.after),)


def inputs(picture: Picture, sight: Sight) -> Mapping[str, Array]:
    """Of a square: its `patches` [N, 3 * patch * patch]."""
    side, patch = sight.side, sight.patch
    values = colours(picture, sight).reshape(side, patch, side, patch, 3)
    return {PATCHES: np.ascontiguousarray(values.transpose(0, 2, 4, 1, 3)).reshape(side * side, -1)}

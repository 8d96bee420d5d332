"""A picture as a model sees it: pixels, and nothing of how they were sent; and where in a prompt.

It stands in a prompt as token ids of its own, made from its pixels, that no vocabulary has. So two
prompts are alike up to a picture that differs, and past one that does not, in whatever files.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from struct import unpack

FIRST_ID = 2**30  # ids from here on are pictures'
PLACEHOLDER = "<|image_pad|>"  # what a template writes for one


@dataclass(frozen=True, slots=True)
class Picture:
    """`rgb` has a row after the other from the top, three bytes a pixel."""

    width: int
    height: int
    rgb: bytes

    @property
    def identity(self) -> str:
        """Whatever file it came in: the same pixels are the same picture."""
        return hashlib.sha256(b"%dx%d " % (self.width, self.height) + self.rgb).hexdigest()


@dataclass(frozen=True, slots=True)
class Sight:
    """How a model sees: a picture's sides are whole cells, of `merge` by `merge` patches each, and
    every cell is a token. `side`: of its table of places. `pixels_min` and `pixels_max`: of a
    picture as the model is used to them.
    """

    patch: int
    merge: int
    side: int
    pixels_min: int
    pixels_max: int

    @property
    def cell(self) -> int:
        return self.patch * self.merge


@dataclass(frozen=True, slots=True)
class Placed:
    """A picture in a prompt: tokens [start, end), `rows` of `columns`. `place` is for people."""

    picture: Picture
    identity: str
    start: int
    rows: int
    columns: int
    place: str = ""

    @property
    def end(self) -> int:
        return self.start + self.rows * self.columns

    @property
    def ids(self) -> tuple[int, ...]:
        """What it stands in the prompt as: 30 bits a token, of a hash as long as all of them."""
        count = self.rows * self.columns
        found = unpack(f"<{count}I", hashlib.shake_256(self.identity.encode()).digest(4 * count))
        return tuple(FIRST_ID | each % FIRST_ID for each in found)


def placed(picture: Picture, start: int, cell: int, place: str = "") -> Placed:
    """At token `start`, for a model whose cells are so many pixels a side."""
    rows, columns = picture.height // cell, picture.width // cell
    return Placed(picture, picture.identity, start, rows, columns, place)


def is_picture(token: int) -> bool:
    return token >= FIRST_ID


def expanded(offset: int, pictures: Iterable[Placed]) -> int:
    """Where `offset` is once every picture is all of its tokens, that was one before."""
    for each in pictures:
        if each.start < offset:
            offset += each.end - each.start - 1
    return offset

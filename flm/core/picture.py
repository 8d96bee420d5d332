"""A picture as a model sees it: pixels, and nothing of how they were sent; and where in a prompt.

It stands in a prompt as token ids of its own, made from its pixels, that no vocabulary has. So two
prompts are alike up to a picture that differs, and past one that does not, in whatever files.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from struct import unpack

FIRST_ID = 2**30  # ids from here on are pictures'
# What a tower's graph takes, by name; which of them, its kind says.
PATCHES, CORNERS, SHARES, CELLS = "patches", "corners", "shares", "cells"
WINDOWS, COUNTS, SEATS = "windows", "counts", "seats"
BUCKETS = "buckets"

Colour = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Picture:
    """`rgb` has a row after the other from the top, three bytes a pixel."""

    width: int
    height: int
    rgb: bytes

    @property
    def bytes_held(self) -> int:
        """What it takes of memory."""
        return len(self.rgb)

    @property
    def identity(self) -> str:
        """Whatever file it came in: the same pixels are the same picture."""
        return hashlib.sha256(b"%dx%d " % (self.width, self.height) + self.rgb).hexdigest()


@dataclass(frozen=True, slots=True)
class Sight:
    """How a model sees. It lies in a bundle as JSON: one without all of these fields is stale.

    `kind` names who makes pictures fit and cuts them (flm/text/sight). A cell of `merge` by `merge`
    patches of `patch` pixels a side is a token; `side` is that of a tower's table of places, or of
    the windows within which its patches attend, in patches.
    `pixels_min` and `pixels_max`: of a picture as the model is used to them. A colour, from 0 to 1,
    is given less `mean`, over `deviation`.

    For one picture the template writes `placeholder`; in its place the model reads, for each view
    of it, tokens of its own between the texts `before` and `after`. `mark`, a special token, stands
    for these until all is encoded. With `spread` they stand in rows and columns of one time
    (MRoPE), else in line as a text's do. `whole`: a pass has all tokens of a view or none.
    A picture may have as many views besides as it has `slices`, and a number before it: `numbered`.
    While a tower is at work it has about `patch_values` floats of each patch.
    """

    kind: str
    patch: int
    merge: int
    side: int
    pixels_min: int
    pixels_max: int
    placeholder: str
    mark: str
    before: str = ""
    after: str = ""
    mean: Colour = (0.5, 0.5, 0.5)
    deviation: Colour = (0.5, 0.5, 0.5)
    spread: bool = False
    whole: bool = False
    slices: int = 0
    numbered: bool = False
    patch_values: int = 0

    @property
    def cell(self) -> int:
        return self.patch * self.merge

    @property
    def fixed(self) -> bool:
        """Whether all pictures are of one size, whatever they were."""
        return self.pixels_min == self.pixels_max


@dataclass(frozen=True, slots=True)
class View:
    """What a tower makes rows of in one go, of a picture all or a part: `rows` of `columns` tokens,
    between the texts `before` and `after`.
    """

    picture: Picture
    rows: int
    columns: int
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Placed:
    """A view of a picture, itself one, in a prompt: tokens [start, end), `rows` of `columns`.
    `place` is for people.
    """

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


def placed(view: View, start: int, place: str = "") -> Placed:
    """At token `start`."""
    return Placed(view.picture, view.picture.identity, start, view.rows, view.columns, place)


def is_picture(token: int) -> bool:
    return token >= FIRST_ID


def expanded(offset: int, pictures: Iterable[Placed]) -> int:
    """Where `offset` is once every picture is all of its tokens, that was one before."""
    for each in pictures:
        if each.start < offset:
            offset += each.end - each.start - 1
    return offset

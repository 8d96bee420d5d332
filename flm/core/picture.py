"""A picture as a model sees it: pixels, and nothing of how they were sent."""

import hashlib
from dataclasses import dataclass


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

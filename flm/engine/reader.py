"""Who reads a conversation: within which limits, and of its pictures what the model sees."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flm.core.picture import Picture, Sight
from flm.engine.album import KEEPS_NOTHING, Visit
from flm.errors import BadRequest, UnsupportedFeature
from flm.settings import Settings
from flm.text.pictures import PictureLimits, Taken, decoded, file_at, file_of, flattened
from flm.text.sight import fitted
from flm.text.sight.scaled import lowered, require_shape

if TYPE_CHECKING:
    from PIL import Image

    Shown = Path | bytes | str | Image.Image  # a str is a data URL, or a path

LOW_TOKENS = 256  # of an image whose "detail" is "low"
HEIGHTS = (None, 480, 720, 1080, 1440, 2160, 2880, 3240, 4320)  # by --img-pre-resize
TOWERS = "take a model that sees: flm list says which, docs/models.md how"


@dataclass(frozen=True, slots=True)
class Reader:
    """Of one request, within the limits of `settings`; without `sight`, text only. `tokens_max`:
    what the request itself says of each picture. `album`: its visit to the model's.
    """

    model: str
    settings: Settings
    sight: Sight | None = None
    tokens_max: int | None = None
    album: Visit = field(default_factory=KEEPS_NOTHING.visit)
    taken: Taken = field(default_factory=Taken)

    @property
    def reads(self) -> str:
        """For people."""
        return "reads text only" if self.sight is None else "reads text and images only"

    def at(self, url: str, place: str, *, detail: object = None) -> Picture:
        """Of a data URL, as the model sees it. Raises BadRequest, UnsupportedFeature."""
        return self._file(file_at(url, self.limits, place=place), place, detail)

    def of(self, text: str, place: str) -> Picture:
        """The same of base64."""
        return self._file(file_of(text, self.limits, place=place), place)

    def seen(self, picture: Picture, place: str, *, detail: object = None) -> Picture:
        """As the model sees it. Raises UnsupportedFeature where it sees nothing."""
        if self.sight is None:
            raise UnsupportedFeature(
                f"{place} is an image of {picture.width} by {picture.height} pixels, and "
                f"{self.model} {self.reads}",
                fix=f"send text, or {TOWERS}",
                param=place,
            )
        if not self.sight.fixed:
            require_shape(picture.width, picture.height, place)  # as it was sent
            picture = lowered(picture, HEIGHTS[self.settings.img_pre_resize])
        return fitted(picture, self.sight, tokens_max=self._most(detail), place=place)

    def shown(self, given: "Shown", place: str) -> Picture:
        """The same of what a program or a person on this machine names; no request comes here.

        Raises BadRequest, UnsupportedFeature.
        """
        if isinstance(given, bytes):
            return self._file(given, place)
        if isinstance(given, str) and given[:5].lower() == "data:":
            return self.at(given, place)
        if isinstance(given, str | Path):
            return self._file(_read(Path(given).expanduser(), self.settings.image_bytes_max), place)
        self._count(place)
        return self.seen(flattened(given, self.limits, place=place), place)

    @property
    def limits(self) -> PictureLimits:
        limits = self.settings
        return PictureLimits(
            limits.image_bytes_max, limits.image_pixels_max, limits.image_cpu_s_max, self.taken
        )

    def _file(self, data: bytes, place: str, detail: object = None) -> Picture:
        """Decoded and made fit, or as it was before: what is kept is within the same limits."""
        self._count(place)

        def made() -> Picture:
            return self.seen(decoded(data, self.limits, place=place), place, detail=detail)

        limits = self.settings
        bounds = limits.image_bytes_max, limits.image_pixels_max, limits.img_pre_resize
        return self.album.seen(data, (self.sight, self._most(detail), bounds), made)

    def _count(self, place: str) -> None:
        """One more. A file of 70 bytes becomes 600 KiB, so what a body may take bounds nothing."""
        self.taken.count += 1
        if self.taken.count > (most := self.settings.images_max):
            raise BadRequest(
                f"{place} is one image too many: {most:,} may be in a request",
                fix="send fewer, or raise images-max in flm.toml",
                param=place,
            )

    def _most(self, detail: object) -> int:
        """Tokens that a picture may be."""
        most = self.settings.image_max_tokens
        tokens = min(most, self.tokens_max or most)
        return min(tokens, LOW_TOKENS) if detail == "low" else tokens


def _read(path: Path, bytes_max: int) -> bytes:
    """No more than shows that it is too large."""
    try:
        with path.open("rb") as file:
            return file.read(bytes_max + 1)
    except OSError as error:
        raise BadRequest(
            f"{path} cannot be read: {error.strerror or error}", fix="check the path"
        ) from error

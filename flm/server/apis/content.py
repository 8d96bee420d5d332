"""A message's content as text and pictures, from any of the shapes clients send it in."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flm.core.picture import Picture
from flm.errors import BadRequest, UnsupportedFeature
from flm.models.cards import cards
from flm.settings import Settings
from flm.text.pictures import PictureLimits, picture_at, picture_of
from flm.text.translation import languages_said

# Part type -> where its text is.
TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
PICTURE_PARTS = ("image_url", "image", "input_image")
MEDIA_PARTS = {
    "input_audio": "a sound",
    "audio": "a sound",
    "audio_url": "a sound",
    "video_url": "a video",
    "video": "a video",
    "file": "a file",
    "input_file": "a file",
    "document": "a document",
}
SILENT_PARTS = (
    "thinking",
    "redacted_thinking",
    "reasoning",
)  # of an earlier reply; not what it said
VISION = "vision"  # the label of models that see
MARKS = ("cache_control", "prompt_cache_breakpoint")  # Anthropic's and OpenAI's, on a part


@dataclass(frozen=True, slots=True)
class Reader:
    """Who is to read a conversation, and within which limits."""

    model: str
    settings: Settings

    def refuse_picture(self, picture: Picture, place: str) -> None:
        """Raises UnsupportedFeature: what is a picture is known, and that nobody here sees it."""
        seeing = [card.tag for card in cards() if VISION in card.labels]
        others = f"serve one that sees: {', '.join(seeing)}" if seeing else "for no model here sees"
        raise UnsupportedFeature(
            f"{place} is an image of {picture.width} by {picture.height} pixels, and {self.model} "
            "reads text only",
            fix=f"send text, {'or ' if seeing else ''}{others}",
            param=place,
        )

    @property
    def limits(self) -> PictureLimits:
        return PictureLimits(self.settings.image_bytes_max, self.settings.image_pixels_max)


def flat_text(
    content: str | Sequence[str | dict[str, Any]] | None, *, place: str, reader: Reader
) -> tuple[str | None, tuple[int, ...]]:
    """Text parts joined by a newline, as vLLM joins them: separate parts are separate thoughts.

    And the offsets in it, in characters, behind parts that the client marked. None stays None.
    Raises UnsupportedFeature for images and sounds, BadRequest for other parts.
    """
    if content is None or isinstance(content, str):
        return content, ()
    return joined_text(enumerate(content), place=place, reader=reader)


def joined_text(
    parts: Iterable[tuple[int, str | dict[str, Any]]],
    *,
    place: str,
    reader: Reader,
    between: str = "\n",
) -> tuple[str, tuple[int, ...]]:
    """The same of some of a message's parts, each with its index there."""
    texts, marks, length = [], [], -len(between)
    for index, part in parts:
        if isinstance(part, str) or part.get("type") not in SILENT_PARTS:
            texts.append(_text(part, f"{place}[{index}]", reader))
            length += len(between) + len(texts[-1])
            if isinstance(part, dict) and is_marked(part):
                marks.append(length)
    return between.join(texts), tuple(marks)


def languages(content: str | Sequence[str | dict[str, Any]] | None) -> tuple[str, str] | None:
    """Of the first part that says both."""
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and (said := languages_said(part)):
            return said
    return None


def is_marked(part: Mapping[str, Any]) -> bool:
    """Whatever the mark says: a hint is no reason to refuse."""
    return any(part.get(name) for name in MARKS)


def unmarked(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool without its mark, which the template would show; the head covers all tools."""
    if not any(name in tool for name in MARKS):
        return tool
    return {name: value for name, value in tool.items() if name not in MARKS}


def _text(part: str | dict[str, Any], place: str, reader: Reader) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text")
    if kind in PICTURE_PARTS:
        reader.refuse_picture(_picture(part, place, reader.limits), place)
    if isinstance(kind, str) and kind in MEDIA_PARTS:
        raise UnsupportedFeature(
            f"{place} is {MEDIA_PARTS[kind]}, and {reader.model} reads text only",
            fix="send text, or serve a model that takes it",
            param=place,
        )
    text = part.get(TEXT_PARTS[kind]) if isinstance(kind, str) and kind in TEXT_PARTS else None
    if not isinstance(text, str):
        raise BadRequest(
            f"{place} is not a text part",
            fix='parts look like {"type": "text", "text": "..."}',
            param=place,
        )
    return text


def _picture(part: Mapping[str, Any], place: str, limits: PictureLimits) -> Picture:
    """OpenAI's two forms and Anthropic's. Raises BadRequest."""
    given: object = part.get("image_url")
    if isinstance(source := part.get("source"), Mapping):
        if source.get("type") == "base64" and isinstance(source.get("data"), str):
            return picture_of(source["data"], limits, place=place)
        given = source.get("url")
    if isinstance(given, Mapping):
        given = given.get("url")
    if not isinstance(given, str):
        raise BadRequest(
            f"{place} has no image in it",
            fix='they look like {"type": "image_url", "image_url": {"url": "data:image/png;..."}}',
            param=place,
        )
    return picture_at(given, limits, place=place)

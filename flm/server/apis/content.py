"""A message's content as text and pictures, from any of the shapes clients send it in."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flm.core.picture import Picture
from flm.engine.reader import Reader
from flm.errors import BadRequest, UnsupportedFeature
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
MARKS = ("cache_control", "prompt_cache_breakpoint")  # Anthropic's and OpenAI's, on a part


Pictures = tuple[tuple[int, Picture], ...]  # each with the characters of text before it


def flat_text(
    content: str | Sequence[str | dict[str, Any]] | None, *, place: str, reader: Reader
) -> tuple[str | None, tuple[int, ...], Pictures]:
    """Text parts joined by a newline, as vLLM joins them: separate parts are separate thoughts.

    And the offsets in it, in characters, behind parts that the client marked; and the pictures, for
    whom no newline is put in. None stays None. Raises UnsupportedFeature for sounds, and images if
    the model reads text only, BadRequest for other parts.
    """
    if content is None or isinstance(content, str):
        return content, (), ()
    return joined_text(enumerate(content), place=place, reader=reader)


def joined_text(
    parts: Iterable[tuple[int, str | dict[str, Any]]],
    *,
    place: str,
    reader: Reader,
    between: str = "\n",
) -> tuple[str, tuple[int, ...], Pictures]:
    """The same of some of a message's parts, each with its index there."""
    text, marks, pictures = "", [], []
    after_text = False
    for index, part in parts:
        if isinstance(part, dict) and part.get("type") in SILENT_PARTS:
            continue
        at = f"{place}[{index}]"
        if isinstance(part, dict) and part.get("type") in PICTURE_PARTS:
            pictures.append((len(text), _picture(part, at, reader)))
            after_text = False
        else:
            text += (between if after_text else "") + _text(part, at, reader)
            after_text = True
        if isinstance(part, dict) and is_marked(part):
            marks.append(len(text))
    return text, tuple(marks), tuple(pictures)


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
    if isinstance(kind, str) and kind in MEDIA_PARTS:
        raise UnsupportedFeature(
            f"{place} is {MEDIA_PARTS[kind]}, and {reader.model} {reader.reads}",
            fix="send its text",
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


def _picture(part: Mapping[str, Any], place: str, reader: Reader) -> Picture:
    """OpenAI's two forms and Anthropic's. Raises BadRequest, UnsupportedFeature."""
    detail = part.get("detail")
    given: object = part.get("image_url")
    if isinstance(source := part.get("source"), Mapping):
        if source.get("type") == "base64" and isinstance(source.get("data"), str):
            return reader.of(source["data"], place)
        given = source.get("url")
    if isinstance(given, Mapping):
        detail = given.get("detail", detail)
        given = given.get("url")
    if not isinstance(given, str):
        raise BadRequest(
            f"{place} has no image in it",
            fix='they look like {"type": "image_url", "image_url": {"url": "data:image/png;..."}}',
            param=place,
        )
    return reader.at(given, place, detail=detail)

"""A message's content as text, from any of the shapes clients send it in."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flm.errors import BadRequest, UnsupportedFeature
from flm.text.translation import languages_said

# Part type -> where its text is.
TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
MEDIA_PARTS = {
    "image_url": "an image",
    "image": "an image",
    "input_image": "an image",
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


def flat_text(
    content: str | Sequence[str | dict[str, Any]] | None, *, place: str, model: str
) -> tuple[str | None, tuple[int, ...]]:
    """Text parts joined by a newline, as vLLM joins them: separate parts are separate thoughts.

    And the offsets in it, in characters, behind parts that the client marked. None stays None.
    Raises UnsupportedFeature for images and sounds, BadRequest for other parts.
    """
    if content is None or isinstance(content, str):
        return content, ()
    return joined_text(enumerate(content), place=place, model=model)


def joined_text(
    parts: Iterable[tuple[int, str | dict[str, Any]]],
    *,
    place: str,
    model: str,
    between: str = "\n",
) -> tuple[str, tuple[int, ...]]:
    """The same of some of a message's parts, each with its index there."""
    texts, marks, length = [], [], -len(between)
    for index, part in parts:
        if isinstance(part, str) or part.get("type") not in SILENT_PARTS:
            texts.append(_text(part, f"{place}[{index}]", model))
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


def _text(part: str | dict[str, Any], place: str, model: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text")
    if isinstance(kind, str) and kind in MEDIA_PARTS:
        raise UnsupportedFeature(
            f"{place} is {MEDIA_PARTS[kind]}, and {model} reads text only",
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

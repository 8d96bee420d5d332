"""A message's content as text, from any of the shapes clients send it in."""

from collections.abc import Sequence
from typing import Any

from flm.errors import BadRequest, UnsupportedFeature

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
}
SILENT_PARTS = ("thinking", "reasoning")  # of an earlier reply; not what it said


def flat_text(
    content: str | Sequence[str | dict[str, Any]] | None, *, place: str, model: str
) -> str | None:
    """Text parts joined by a newline, as vLLM joins them: separate parts are separate thoughts.

    None stays None. Raises UnsupportedFeature for images and sounds, BadRequest for other parts.
    """
    if content is None or isinstance(content, str):
        return content
    return "\n".join(
        _text(part, f"{place}[{index}]", model)
        for index, part in enumerate(content)
        if isinstance(part, str) or part.get("type") not in SILENT_PARTS
    )


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

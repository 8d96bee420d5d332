"""The pictures of a conversation: in its text, once it is rendered, and among its tokens.

Where the template writes a placeholder the model reads the picture's views, each between its texts
(core/picture.py). All is encoded with a mark for each view, so text around it is read as it is by
the reference processors, and then the mark gives way to the view's own ids.
"""

from collections.abc import Iterable, Iterator, Sequence

from flm.core.chat import Message
from flm.core.picture import Picture, Placed, Sight, View, placed
from flm.errors import BadRequest
from flm.text.sight import views


def with_pictures(tokens: Sequence[int], pictures: Sequence[Placed]) -> tuple[int, ...]:
    """Each picture's own ids in place of the token that stands for it."""
    whole = list(tokens)
    for each in pictures:
        whole[each.start : each.start + 1] = each.ids
    return tuple(whole)


class Shown:
    """For one conversation, as it is and as it may go on: each picture is cut once."""

    def __init__(self, sight: Sight | None, mark: int | None) -> None:
        self._sight = sight
        self._mark = mark  # the token
        self._cut: dict[tuple[int, int], tuple[View, ...]] = {}

    def text(self, rendered: str, messages: Sequence[Message]) -> str:
        """With what stands for each picture. Raises BadRequest where the template has not one place
        for each.
        """
        pictures = list(_pictures(messages))
        if not pictures:
            return rendered
        assert self._sight, "a picture for a model that reads text only"
        first, *rest = rendered.split(self._sight.placeholder)
        _require(len(rest), len(pictures), self._sight.placeholder)
        parts = [first]
        for number, ((_, picture), behind) in enumerate(zip(pictures, rest, strict=True)):
            seen = self._views(picture, number)
            parts += [each.before + self._sight.mark + each.after for each in seen]
            parts.append(behind)
        return "".join(parts)

    def require_own(self, texts: Iterable[str]) -> None:
        """Raises BadRequest where one of `texts` has a place: it would be taken for that of a
        picture which the template leaves out.
        """
        word = self._sight.placeholder if self._sight else ""
        if word and any(word in text for text in texts):
            raise BadRequest(
                f"a text has {word}, which is an image's place in the model's chat template",
                fix=f"send images, and no text with {word} beside them",
                param="messages",
            )

    def placed(self, tokens: Sequence[int], messages: Sequence[Message]) -> tuple[Placed, ...]:
        """Where marks stand among `tokens`. Raises BadRequest where a text has some of its own."""
        pictures = list(_pictures(messages))
        if not pictures:
            return ()
        assert self._sight
        seen = [
            (view, place)
            for number, (place, picture) in enumerate(pictures)
            for view in self._views(picture, number)
        ]
        marks = [at for at, token in enumerate(tokens) if token == self._mark]
        _require(len(marks), len(seen), self._sight.mark)
        found: list[Placed] = []
        further = 0
        for at, (view, place) in zip(marks, seen, strict=True):
            found.append(placed(view, at + further, place))
            further += found[-1].end - found[-1].start - 1
        return tuple(found)

    def _views(self, picture: Picture, number: int) -> tuple[View, ...]:
        assert self._sight
        key = id(picture), number  # the conversation holds it
        if key not in self._cut:
            self._cut[key] = views(picture, self._sight, number)
        return self._cut[key]


def _pictures(messages: Sequence[Message]) -> Iterator[tuple[str, Picture]]:
    """Each with its place, for people."""
    for index, message in enumerate(messages):
        for number, (_, picture) in enumerate(message.pictures, 1):
            yield f"picture {number} of messages[{index}]", picture


def _require(places: int, pictures: int, word: str) -> None:
    if places != pictures:
        raise BadRequest(
            f"the model's chat template has {places} places for {pictures} images",
            fix=f"send images where the template takes them, and no text with {word}",
            param="messages",
        )

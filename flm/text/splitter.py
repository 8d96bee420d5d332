"""Parts a reply into thoughts and content.

Invariants:
  * The same text in other pieces gives the same thoughts and the same content.
  * A thought opens only where no content has begun, so content may speak of the tags.
  * Dropped are the tags, the white space after one and that before a first one; nothing else.
"""

from flm.core.chat import Delta, DeltaKind
from flm.text.stops import held_length


class Splitter:
    """Of one reply. `thinking` at the start: the prompt has already opened a thought.

    Later it tells whether a thought is open, one that is never closed stays a thought; `thoughts`
    counts them, and is the `index` of their deltas.
    """

    def __init__(
        self, *, opens: str = "<think>", closes: str = "</think>", thinking: bool = False
    ) -> None:
        self.thinking = thinking
        self.thoughts = int(thinking)
        self._opens, self._closes = opens, closes
        self._held = ""
        self._begun = False  # what is held belongs to the open thought, or to the content
        self._tagged = thinking  # a tag came right before

    def add(self, text: str) -> list[Delta]:
        """What is now known to be thought or content, in order."""
        self._held += text
        deltas: list[Delta] = []
        while self._begin():
            if not self.thinking:
                return deltas + self._give(len(self._held))
            end = self._held.find(self._closes)
            if end < 0:
                waits = held_length(self._held, [self._closes])
                return deltas + self._give(len(self._held) - waits)
            deltas += self._give(end)
            self._pass(self._closes, self._held)
        return deltas

    def finish(self) -> list[Delta]:
        """What was held back as the possible start of a tag."""
        return self._give(len(self._held))

    def _begin(self) -> bool:
        """Pass the tags at the start of what is held. Whether text stands there, for sure."""
        while not self._begun:
            ahead = self._held.lstrip()
            if self._tagged:
                self._held = ahead
            # A model may open the thought that the prompt has opened already.
            tags = [self._opens, self._closes] if self.thinking else [self._opens]
            tag = next(filter(ahead.startswith, tags), None)
            if tag is not None:
                self._pass(tag, ahead)
            elif any(tag.startswith(ahead) for tag in tags):
                return False
            else:
                self._begun = True
        return True

    def _pass(self, tag: str, text: str) -> None:
        self._held = text[len(tag) :]
        opened = tag == self._opens
        self.thoughts += opened and not self.thinking
        self.thinking = opened
        self._begun, self._tagged = False, True

    def _give(self, length: int) -> list[Delta]:
        text, self._held = self._held[:length], self._held[length:]
        if not text:
            return []
        if self.thinking:
            return [Delta(DeltaKind.REASONING, text, self.thoughts)]
        return [Delta(DeltaKind.CONTENT, text)]

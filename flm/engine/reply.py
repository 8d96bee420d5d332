"""A reply in the making: what of it may be shown, and whether it ends here."""

from flm.core.request import Request
from flm.text.detokenizer import Detokenizer
from flm.text.stops import StopStrings
from flm.text.tokenizer import Tokenizer


class ReplyText:
    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self._eos_ids = frozenset() if request.ignore_eos else tokenizer.eos_ids
        self._detokenizer = Detokenizer(tokenizer, request.shown)
        self._stops = StopStrings(request.stop)

    @property
    def stop(self) -> str | None:
        """The stop string that was met."""
        return self._stops.met

    def ends_with(self, token: int) -> bool:
        """Whether the model ended its turn with `token`, which is not shown."""
        return token in self._eos_ids

    def add(self, token: int) -> tuple[str, bool]:
        """(text that may be shown now, whether a stop string was met)"""
        return self._stops.add(self._detokenizer.add(token))

    def finish(self) -> str:
        """What was held back, when no stop string was met."""
        text, stopped = self._stops.add(self._detokenizer.finish())
        return text if stopped else text + self._stops.finish()

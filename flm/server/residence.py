"""What the server can answer with just now: a model, or the reason why there is none yet."""

import time

from flm.core.request import Priority
from flm.engine.residency import Resident
from flm.errors import BadRequest, ModelLoading, ModelNotFound

# What clients may call themselves. The third is ours.
CLASSES = {each.value: each for each in (Priority.INTERACTIVE, Priority.AGENT)}


class Residence:
    """Empty while a model loads; `settle` moves it in."""

    def __init__(self) -> None:
        self._resident: Resident | None = None
        self.settled_at = 0  # Unix time, seconds

    def settle(self, resident: Resident) -> None:
        self._resident = resident
        self.settled_at = int(time.time())

    @property
    def resident(self) -> Resident:
        """Raises ModelLoading."""
        if self._resident is None:
            raise ModelLoading("The model is loading", fix="ask again in a few seconds")
        return self._resident

    def find(self, model: str) -> Resident:
        """The model a request names, with or without `@class` after it.

        Raises ModelLoading, BadRequest, ModelNotFound.
        """
        resident = self.resident
        if not model.strip():
            raise BadRequest("model is empty", fix=f"send {resident.card.tag}", param="model")
        served = served_names(resident)
        if not model_names(model).isdisjoint(served):
            return resident
        name, word = split_class(model)
        if model_names(name).isdisjoint(served):
            raise ModelNotFound(
                f"The model {model!r:.80} is not served here",
                fix=f"ask for {resident.card.tag}, or start the server with flm serve MODEL",
                param="model",
            )
        if word not in CLASSES:
            raise BadRequest(
                f"model asks for the class {word!r:.40}, which is none",
                fix=f"send {name}, or {name}@agent where no person waits",
                param="model",
            )
        return resident


def served_names(resident: Resident) -> set[str]:
    card = resident.card
    return {name.lower() for name in (card.tag, card.tag.partition(":")[0], *card.aliases)}


def model_names(model: str) -> set[str]:
    """What a client may mean: as written, without an owner before it or Ollama's tag after it."""
    name = model.strip().lower()
    return {n.removesuffix(":latest") for n in (name, name.rpartition("/")[2])}


def split_class(model: str) -> tuple[str, str]:
    """`model@agent` as its two words; the second is empty without one."""
    name, at, word = model.strip().rpartition("@")
    return (name, word.lower()) if at else (word, "")

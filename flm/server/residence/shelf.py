"""The models on this machine as requests may name them: nothing else is loaded for one.

A client's word is only ever compared with these names; it never becomes a path or an address.
"""

from collections.abc import Callable
from dataclasses import dataclass

from flm.engine.plan import context_length_of, no_longer_than
from flm.errors import FlmError, ModelNotFound
from flm.graph.bundle import Bundle, StaleBundle
from flm.hub.reference import resolve
from flm.hub.shelf import RECORD, Installed, Shelf
from flm.models.cards import Card
from flm.models.cards import find as find_card
from flm.server.residence.names import model_names, served_names, whole_names
from flm.settings import NPUS, Settings

NAME_CHARS_MAX = 256  # of a model; a longer one is nobody's


@dataclass(frozen=True, slots=True)
class Shelved:
    """`text` is what to load it by; `installed_at` is in seconds since 1970."""

    text: str
    card: Card
    context_length: int  # as it would be loaded
    size_bytes: int
    installed_at: int
    sees: bool = False  # it has its picture tower, and would be loaded where that runs


def shelved(settings: Settings) -> list[Shelved]:
    """All of them. Looks into their folders: not for an event loop."""
    found = []
    for one in Shelf(settings.model_path).installed():
        try:
            found.append(_shelved(one, settings))
        except (FlmError, OSError):  # removed since, or its card is gone
            continue
    return found


def find_shelved(model: str, settings: Settings) -> Shelved | None:
    """The one that `model` means: by its whole name before one without its size."""
    here, wanted = shelved(settings), model_names(model)
    ways: tuple[Callable[[Card], set[str]], ...] = (whole_names, served_names)
    for names in ways:
        for one in here:
            if not wanted.isdisjoint(names(one.card)):
                return one
    return None


def not_here(model: str, served: str | None) -> ModelNotFound:
    """For a name that is not on the shelf; `served` is what is loaded."""
    card = _known(model)
    if card is not None:
        return ModelNotFound(
            f"The model {card.tag} is not installed here", fix=f"flm pull {card.tag}", param="model"
        )
    instead = f"ask for {served}, or " if served else ""
    return ModelNotFound(
        f"The model {model!r:.80} is not served here",
        fix=f"{instead}choose one that GET /v1/models lists, or flm pull MODEL",
        param="model",
    )


def _shelved(found: Installed, settings: Settings) -> Shelved:
    card = resolve(found.text).card
    try:
        bundle = Bundle.open(found.folder / "bundle")
        longest, sees = bundle.context_length, bundle.sight is not None
    except StaleBundle:
        longest, sees = card.context_length_max, False
    wanted = no_longer_than(settings, longest).ctx_len
    return Shelved(
        text=found.text,
        card=card,
        context_length=context_length_of(longest, card.context_length, wanted),
        size_bytes=found.size_bytes or card.file_bytes,
        installed_at=int((found.folder / RECORD).stat().st_mtime),
        sees=sees and settings.device not in NPUS,
    )


def _known(model: str) -> Card | None:
    """The card that we ship under one of these names."""
    if len(model) > NAME_CHARS_MAX:
        return None
    for name in sorted(model_names(model)):
        try:
            return find_card(name)
        except ModelNotFound:
            continue
    return None

"""A model ready to be asked, for the commands that talk to one themselves."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from flm import console
from flm.hub.reference import resolve
from flm.settings import Settings

if TYPE_CHECKING:
    from flm.engine.beside import Beside
    from flm.engine.residency import Resident


def load_resident(
    model: str,
    settings: Settings,
    *,
    say: Callable[[str], None] = console.say,
    beside: "Beside | None" = None,
) -> "Resident":
    """Fetched, compiled, loaded; `say` hears of its memory and its prefix cache.

    Raises what these raise; an unknown name at once.
    """
    wanted = resolve(model)
    from flm.engine.residency import load, require_device
    from flm.hub.prepare import prepare_model

    require_device(settings)  # before minutes of fetching
    bundle, card = prepare_model(wanted.text, settings)
    console.say(f"Loading model: {bundle.folder.parent}")
    return load(bundle, card, settings, say=say, warn=console.warn, beside=beside)


def prepare_resident(
    model: str, settings: Settings, beside: "Beside | None" = None
) -> "Callable[[], Resident]":
    """Of a model that is installed: compiled, and found to fit; the rest is loading it.

    A --ctx-len longer than it takes was meant for another. Raises ModelNotFound, BadModelFile,
    NoRoom.
    """
    from flm.engine.plan import no_longer_than
    from flm.engine.residency import load, planned
    from flm.hub.prepare import prepare_installed

    bundle, card = prepare_installed(model, settings)
    settings = no_longer_than(settings, bundle.context_length)
    planned(bundle, card, settings, beside)

    def loaded() -> "Resident":
        console.say(f"Loading model: {bundle.folder.parent}")
        return load(bundle, card, settings, say=console.say, warn=console.warn, beside=beside)

    return loaded

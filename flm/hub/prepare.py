"""From a name to a bundle that a device can load: pulled if it is not here, compiled once."""

from pathlib import Path
from typing import TYPE_CHECKING

from flm import console
from flm.errors import BadModelFile, ModelNotFound
from flm.hub.disk import only_writer
from flm.hub.pull import pull
from flm.hub.reference import Reference, resolve
from flm.hub.shelf import Shelf
from flm.models.cards import Card
from flm.settings import Settings

if TYPE_CHECKING:
    from flm.graph.bundle import Bundle


def prepare_model(model: str, settings: Settings) -> "tuple[Bundle, Card]":
    """Tells the console what takes time.

    Raises ModelNotFound, DownloadFailed, BadModelFile, UnsupportedModel, NoRoom, BadSettings.
    """
    with console.downloads() as downloading:
        source = pull(model, settings, progress=downloading)
    return _compiled(resolve(model), source, settings)


def prepare_installed(model: str, settings: Settings) -> "tuple[Bundle, Card]":
    """The same of what is here: nothing is fetched. Raises ModelNotFound with how to."""
    wanted = resolve(model)
    found = Shelf(settings.model_path).find(wanted)
    if found is None:
        raise ModelNotFound(
            f"The model {wanted.text} is not installed",
            fix=f"flm pull {wanted.text}",
            param="model",
        )
    return _compiled(wanted, found.source, settings)


def _compiled(wanted: Reference, source: Path, settings: Settings) -> "tuple[Bundle, Card]":
    from flm.models.compile import prepare

    shelf = Shelf(settings.model_path)
    folder = shelf.folder(wanted)
    with only_writer(folder), console.progress(f"Compiling {wanted.card.tag}") as compiling:
        try:
            bundle = prepare(source, folder / "bundle", progress=compiling, say=console.say)
        except BadModelFile:
            if wanted.path is not None:  # it was noted as a model, and is none
                shelf.remove(wanted)
            raise
    return bundle, wanted.card

"""From a name to a bundle that a device can load: pulled if it is not here, compiled once."""

from typing import TYPE_CHECKING

from flm import console
from flm.errors import BadModelFile
from flm.hub.disk import only_writer
from flm.hub.pull import pull
from flm.hub.reference import resolve
from flm.hub.shelf import Shelf
from flm.models.cards import Card
from flm.settings import Settings

if TYPE_CHECKING:
    from flm.graph.bundle import Bundle


def prepare_model(model: str, settings: Settings) -> "tuple[Bundle, Card]":
    """Tells the console what takes time.

    Raises ModelNotFound, DownloadFailed, BadModelFile, UnsupportedModel, NoRoom, BadSettings.
    """
    from flm.models.compile import prepare

    wanted = resolve(model)
    shelf = Shelf(settings.model_path)
    folder = shelf.folder(wanted)
    with console.downloads() as downloading:
        source = pull(model, settings, progress=downloading)
    with only_writer(folder), console.progress(f"Compiling {wanted.card.tag}") as compiling:
        try:
            bundle = prepare(source, folder / "bundle", progress=compiling, say=console.say)
        except BadModelFile:
            if wanted.path is not None:  # it was noted as a model, and is none
                shelf.remove(wanted)
            raise
    return bundle, wanted.card

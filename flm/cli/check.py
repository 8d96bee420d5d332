"""flm check"""

import typer

from flm import console
from flm.cli import options
from flm.errors import BadModelFile, ModelNotFound
from flm.hub.pull import bad_files
from flm.hub.reference import resolve
from flm.hub.shelf import Shelf


def command(
    context: typer.Context,
    model: options.Model,
    quiet: options.Quiet = False,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Verify the hashes of a model's files."""
    settings = options.settings_of(context)
    wanted = resolve(model)
    found = Shelf(settings.model_path).find(wanted)
    if found is None:
        raise ModelNotFound(
            f"{wanted.text} is not installed, or not wholly.", fix=f"flm pull {wanted.text}"
        )
    bad = bad_files(found, wanted.card)
    for name in found.files:
        if name not in bad:
            console.say(f"{name}: verified", colour=console.GREEN)
    if bad:
        raise BadModelFile(
            f"{', '.join(bad)} of {wanted.text} is damaged.",
            fix=f"flm pull {wanted.text} --force fetches it again",
        )
    if found.files:
        console.say("All files verified successfully.")
    else:
        console.say(f"{found.source} is used where it lies: there is no hash to compare with")

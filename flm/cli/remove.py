"""flm remove"""

import typer

from flm import console
from flm.cli import options
from flm.hub.disk import size_text
from flm.hub.reference import resolve
from flm.hub.shelf import Shelf


def command(
    context: typer.Context,
    model: options.Model,
    quiet: options.Quiet = False,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Delete a model from this machine."""
    settings = options.settings_of(context)
    wanted = resolve(model)
    freed = Shelf(settings.model_path).remove(wanted)
    console.say(f"Model removed: {wanted.text} ({size_text(freed)} freed)")

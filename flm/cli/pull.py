"""flm pull"""

from typing import Annotated

import typer

from flm import console
from flm.cli import options
from flm.hub.pull import pull
from flm.hub.reference import resolve

Force = Annotated[
    bool, typer.Option("--force", help="check every file's hash and fetch again what is bad")
]


def command(
    context: typer.Context,
    model: options.Model,
    force: Force = False,
    quiet: options.Quiet = False,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Fetch a model to this machine. An interrupted pull goes on where it stopped."""
    settings = options.settings_of(context)
    wanted = resolve(model)
    console.say(f"Model: {wanted.text}")
    console.say(f"Name: {wanted.name}")
    fetched = False
    with console.downloads() as show:

        def progress(file: str, done: int, total: int) -> None:
            nonlocal fetched
            fetched = True
            show(file, done, total)

        source = pull(model, settings, progress=progress, force=force, tower=True)
    if force:
        console.say("All files verified successfully.")
    elif not fetched:
        console.say("Nothing to fetch: all files are here. --force checks them.")
    console.say("Model downloaded successfully!", colour=console.GREEN)
    console.debug(f"at {source}")

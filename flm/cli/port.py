"""flm port"""

import typer

from flm import console
from flm.cli import options


def command(
    context: typer.Context,
    json_: options.Json = False,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Show the port that flm serve listens on."""
    number = options.settings_of(context).port
    console.write(f'{{ "port": {number} }}\n' if json_ else f"Server Port: {number}\n")

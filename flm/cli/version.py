"""flm version"""

import typer

from flm import __version__, console
from flm.cli import options


def command(context: typer.Context, json_: options.Json = False) -> None:
    """Show the version."""
    console.write(f'{{ "version": "{__version__}" }}\n' if json_ else f"FLM v{__version__}\n")

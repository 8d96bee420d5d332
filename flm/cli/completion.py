"""flm completion"""

from enum import StrEnum
from typing import Annotated

import typer

from flm import console
from flm.cli.app import COMPLETES


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def command(shell: Annotated[Shell, typer.Argument(help="The shell that it is for.")]) -> None:
    """Print what makes a shell complete flm's commands and options.

    In ~/.bashrc: [bold]source <(flm completion bash)[/bold]
    """
    from typer._completion_shared import get_completion_script

    script = get_completion_script(prog_name="flm", complete_var=COMPLETES, shell=shell.value)
    console.write(script + "\n")

"""flm.1, from what the commands say of themselves: `python packaging/man.py > flm.1`."""

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from flm import __version__
from flm.cli.app import COMMANDS, command_line

FILES = (
    ("./flm.toml, ~/.config/flm/flm.toml", "settings; the first that is there"),
    ("~/.config/flm", "models, and what is kept of prompts"),
)


def page() -> Iterator[str]:
    """The lines of the page."""
    flm: Any = typer.main.get_command(command_line(COMMANDS))
    yield f'.TH FLM 1 "" "flm {__version__}" "User Commands"'
    yield from (".SH NAME", "flm \\- serve language models, and read long prompts once")
    yield from (".SH SYNOPSIS", ".B flm", ".I COMMAND", "[OPTIONS] [MODEL]")
    yield from (".SH DESCRIPTION", *_paragraphs(flm.help))
    yield ".SH COMMANDS"
    for name, command in flm.commands.items():
        yield from _command(f"flm {name}", command)
    yield from (".SH ENVIRONMENT", "Every setting has a variable: FLM_CTX_LEN is \\-\\-ctx\\-len.")
    yield ".SH FILES"
    for path, text in FILES:
        yield from (".TP", f".I {_plain(path)}", _plain(text))


def _command(name: str, command: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        for inner, each in command.commands.items():
            yield from _command(f"{name} {inner}", each)
        return
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    taken = " ".join(each.make_metavar(ctx=_context(command)) for each in arguments)
    yield from (f".SS {_plain(name)} {_plain(taken)}", *_paragraphs(command.help))
    for option in options:
        if option.hidden:
            continue
        names = ", ".join([*option.opts, *option.secondary_opts])
        value = "" if option.is_flag else f" {option.make_metavar(ctx=_context(command))}"
        yield from (".TP", f".B {_plain(names + value)}", _plain(option.help or ""))


def _context(command: Any) -> Any:
    return command.context_class(command)


def _paragraphs(text: str | None) -> Iterator[str]:
    for part in (text or "").strip().split("\n\n"):
        yield from (".PP", _plain(" ".join(part.split())))


def _plain(text: str) -> str:
    """As roff shows it: no markup of rich's, hyphens that can be copied, no line a request."""
    text = re.sub(r"\[/?(bold|dim|italic)\]", "", text)
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    print("\n".join(page()))

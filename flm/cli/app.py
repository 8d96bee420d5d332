"""`flm COMMAND [OPTIONS] [MODEL]`: FastFlowLM's grammar, whose options may stand anywhere.

Only the command asked for is imported: `flm list` answers in a fraction of a second.
"""

import difflib
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module

import typer

from flm import console
from flm.errors import FlmError

COMMANDS = (
    "serve",
    "run",
    "pull",
    "list",
    "remove",
    "check",
    "validate",
    "bench",
    "cache",
    "kernels",
    "version",
    "port",
    "completion",
)
COMPLETES = "_FLM_COMPLETE"  # by which a shell asks for what may come next
GROUPS = {"cache", "kernels"}  # commands that have commands
# Options that take no value: the word after them is not theirs.
SWITCHES = {
    "-j",
    "--json",
    "--quiet",
    "--force",
    "-h",
    "--help",
    "-v",
    "--version",
    "--prefix-shared",
    "--text",
    "--yes",
    "--simulate",
    "-y",
}
# click's, or typer's own copy of it
USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0, or 1 with what happened and what to do about it."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(words: list[str]) -> int:
    """The exit code of one command line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that knows no emoji
    try:
        return _dispatch(words)
    except FlmError as error:
        if console.debugging():
            raise
        console.fail(error.message, fix=error.fix)
    except USAGE_ERROR as error:
        command = next((word for word in words if word in COMMANDS), "")
        said = error.format_message() if hasattr(error, "format_message") else str(error)
        console.fail(said, fix=f"flm {command} --help".replace("  ", " ") + " explains")
    except KeyboardInterrupt:
        console.write("\n")
        return 130
    except Exception as error:
        if console.debugging():
            raise
        console.fail(
            f"flm made a mistake: {type(error).__name__}: {error}",
            fix="run it again with --log-level debug, and tell its authors what that prints",
        )
    return 1


def _dispatch(words: list[str]) -> int:
    if COMPLETES in os.environ:
        return _invoke([], COMMANDS)
    command, rest = split_command(words)
    if command in (None, "help"):
        if command is None and {"-v", "--version", "--prefix-shared"} & set(rest):
            return _invoke(["version"], ["version"])
        topic = [word for word in rest if word in COMMANDS][:1]
        _invoke([*topic, "--help"], topic or COMMANDS)
        return 0 if words else 1
    if command not in COMMANDS:
        near = difflib.get_close_matches(str(command).lower(), COMMANDS, n=1)
        meant = f"Did you mean flm {near[0]}?\n" if near else ""
        console.write(
            f"Invalid command: {command}\n{meant}Use --help for usage information\n",
            to=sys.stderr,
        )
        return 1
    if command in GROUPS:
        inner, rest = split_command(rest)
        rest = [inner, *rest] if inner else rest or ["--help"]
    return _invoke([command, *rest], [command])


def split_command(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The first word that is neither an option nor an option's value, and the others in order."""
    for index, word in enumerate(words):
        before = words[index - 1] if index else ""
        is_value = before.startswith("-") and before not in SWITCHES and "=" not in before
        if not word.startswith("-") and not is_value:
            return word, [*words[:index], *words[index + 1 :]]
    return None, list(words)


def _invoke(words: list[str], commands: Iterable[str]) -> int:
    code = command_line(commands)(words, prog_name="flm", standalone_mode=False)
    return code if isinstance(code, int) else 0


def command_line(commands: Iterable[str]) -> typer.Typer:
    """Of these commands; the others are not imported."""
    app = typer.Typer(
        add_completion=COMPLETES in os.environ,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for command in commands:
        module = import_module(f"flm.cli.{command}")
        if command in GROUPS:
            app.add_typer(module.app, name=command)
        else:
            app.command(command)(module.command)
    return app


def _root() -> None:
    """Serve language models on an AMD NPU or any CPU, reading long prompts once.

    [bold]flm serve smollm2:135m[/bold] fetches a small model and answers at
    http://127.0.0.1:52625/v1; [bold]flm run smollm2:135m[/bold] chats with it here.
    """

"""flm cache"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from flm import console
from flm.cli import options
from flm.cli.remote import ask
from flm.core.sizes import counted
from flm.errors import BadRequest
from flm.settings import Settings

PATH = "/v1/prefix-cache"

app = typer.Typer(
    help="See what a running server keeps of prompts, and why one is read again.",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)
File = Annotated[str, typer.Argument(metavar="FILE", help="a request's JSON; - reads a pipe")]
Files = Annotated[list[str], typer.Argument(metavar="FILE...", help="requests' JSON")]
Text = Annotated[bool, typer.Option("--text", help="with the beginning of each part")]
Salt = Annotated[
    str | None,
    typer.Option("--cache-salt", metavar="SALT", help="the prompts that were sent with it"),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]


@app.command("show")
def show(
    context: typer.Context,
    text: Text = False,
    salt: Salt = None,
    json_: options.Json = False,
    host: options.ItsHost = None,
    port: options.ItsPort = None,
    api_keys: options.ItsApiKeys = None,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Draw what is kept: shared beginnings, conversations, what each takes and who used it."""
    reply = ask(options.settings_of(context), "GET", _address(PATH, salt, text=text))
    if json_:
        _write_json(reply)
        return
    from flm.cli.kept import draw_tree

    console.write(draw_tree(reply))


@app.command("explain")
def explain(
    context: typer.Context,
    file: File,
    salt: Salt = None,
    json_: options.Json = False,
    host: options.ItsHost = None,
    port: options.ItsPort = None,
    api_keys: options.ItsApiKeys = None,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Say how much of a request would be reused, and what stands in the way. Runs nothing."""
    settings = options.settings_of(context)
    reply = ask(settings, "POST", f"{PATH}/explain", _read(file) | _salted(salt))
    if json_:
        _write_json(reply)
        return
    from flm.cli.drawing import draw_explanation

    console.write(draw_explanation(reply))


@app.command("warm")
def warm(
    context: typer.Context,
    files: Files,
    salt: Salt = None,
    json_: options.Json = False,
    host: options.ItsHost = None,
    port: options.ItsPort = None,
    api_keys: options.ItsApiKeys = None,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Have requests' prompts read while the server has nothing else to do."""
    settings = options.settings_of(context)
    bodies: list[Any] = []
    for file in files:
        body = _read(file)
        bodies += body.get("requests", [body])
    salted = [body | _salted(salt) if isinstance(body, dict) else body for body in bodies]
    reply = ask(settings, "POST", f"{PATH}/warm", {"requests": salted})
    if json_:
        _write_json(reply)
    else:
        prompts = counted(reply["queued"], "prompt")
        tokens = counted(reply["prompt_tokens"], "token")
        console.write(f"Queued: {prompts}, {tokens}, read when nobody waits\n")


@app.command("clear")
def clear(
    context: typer.Context,
    yes: Yes = False,
    salt: Salt = None,
    json_: options.Json = False,
    host: options.ItsHost = None,
    port: options.ItsPort = None,
    api_keys: options.ItsApiKeys = None,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Forget what is kept, in memory and on disk. Other API keys' prompts stay."""
    settings = options.settings_of(context)
    if not (yes or _agreed(settings)):
        console.write("Nothing was cleared.\n")
        raise typer.Exit(1)
    reply = ask(settings, "POST", _address(f"{PATH}/clear", salt), {})
    if json_:
        _write_json(reply)
    else:
        others = "with another cache_salt, or none," if salt else "with a cache_salt"
        console.write(
            f"Cleared: {counted(reply['cleared'], 'snapshot')}. Those of other keys, and those "
            f"sent {others} stay.\n"
        )


def _address(path: str, salt: str | None, *, text: bool = False) -> str:
    fields = _salted(salt) | ({"text": "1"} if text else {})
    return f"{path}?{urlencode(fields)}" if fields else path


def _salted(salt: str | None) -> dict[str, str]:
    return {} if salt is None else {"cache_salt": salt}


def _agreed(settings: Settings) -> bool:
    if not sys.stdin.isatty():
        raise BadRequest("Nobody is here to be asked.", fix="add --yes")
    console.write(f"Forget the kept prompts of the server on port {settings.port}? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _read(file: str) -> dict[str, Any]:
    try:
        raw = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        body = json.loads(raw)
    except OSError as error:
        raise BadRequest(
            f"{file} cannot be read: {error.strerror}", fix="name a file with a request's JSON"
        ) from error
    except ValueError as error:
        raise BadRequest(f"{file} is not JSON: {error}", fix="send one JSON object") from error
    if not isinstance(body, dict) or not isinstance(body.get("requests", []), list):
        raise BadRequest(f"{file} is no request", fix="send one JSON object")
    return body


def _write_json(reply: Mapping[str, Any]) -> None:
    console.write(json.dumps(reply, indent=4) + "\n")

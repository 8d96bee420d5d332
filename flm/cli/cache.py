"""flm cache"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from flm import console
from flm.cli import options
from flm.cli.remote import ask
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
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]


@app.command("show")
def show(
    context: typer.Context,
    text: Text = False,
    json_: options.Json = False,
    host: options.Host = None,
    port: options.Port = None,
    api_keys: options.ApiKeys = None,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Draw what is kept: shared beginnings, conversations, what each takes and who used it."""
    reply = ask(options.settings_of(context), "GET", f"{PATH}?text=1" if text else PATH)
    if json_:
        _write_json(reply)
        return
    from flm.cli.drawing import draw_tree

    console.write(draw_tree(reply))


@app.command("explain")
def explain(
    context: typer.Context,
    file: File,
    json_: options.Json = False,
    host: options.Host = None,
    port: options.Port = None,
    api_keys: options.ApiKeys = None,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Say how much of a request would be reused, and what stands in the way. Runs nothing."""
    settings = options.settings_of(context)
    reply = ask(settings, "POST", f"{PATH}/explain", _read(file))
    if json_:
        _write_json(reply)
        return
    from flm.cli.drawing import draw_explanation

    console.write(draw_explanation(reply))


@app.command("warm")
def warm(
    context: typer.Context,
    files: Files,
    json_: options.Json = False,
    host: options.Host = None,
    port: options.Port = None,
    api_keys: options.ApiKeys = None,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Have requests' prompts read while the server has nothing else to do."""
    settings = options.settings_of(context)
    bodies: list[Any] = []
    for file in files:
        body = _read(file)
        bodies += body.get("requests", [body])
    reply = ask(settings, "POST", f"{PATH}/warm", {"requests": bodies})
    if json_:
        _write_json(reply)
    else:
        tokens = f"{reply['prompt_tokens']:,} tokens"
        console.write(f"Queued: {reply['queued']} prompts, {tokens}, read when nobody waits\n")


@app.command("clear")
def clear(
    context: typer.Context,
    yes: Yes = False,
    json_: options.Json = False,
    host: options.Host = None,
    port: options.Port = None,
    api_keys: options.ApiKeys = None,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Forget what is kept, in memory and on disk. Other API keys' prompts stay."""
    settings = options.settings_of(context)
    if not (yes or _agreed(settings)):
        console.write("Nothing was cleared.\n")
        raise typer.Exit(1)
    reply = ask(settings, "POST", f"{PATH}/clear", {})
    if json_:
        _write_json(reply)
    else:
        console.write(
            f"Cleared: {reply['cleared']} snapshots. Those of other keys, and those sent with a "
            "cache_salt, stay.\n"
        )


def _agreed(settings: Settings) -> bool:
    if not sys.stdin.isatty():
        raise BadRequest("Nobody is here to be asked.", fix="add --yes")
    console.write(f"Forget the kept prompts of the server on port {settings.port}? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _read(file: str) -> Mapping[str, Any]:
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

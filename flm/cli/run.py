"""flm run"""

import sys
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from flm import console
from flm.cli import options
from flm.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flm.cli.chat import Chat
    from flm.core.picture import Picture

Prompt = Annotated[
    str | None,
    typer.Argument(metavar="[PROMPT]", help="ask this and leave; - reads it from a pipe"),
]
Images = Annotated[
    list[str] | None,
    typer.Option("--image", metavar="FILE", help="show this picture with it; may be repeated"),
]


def command(
    context: typer.Context,
    model: options.Model,
    prompt: Prompt = None,
    image: Images = None,
    ctx_len: options.CtxLen = None,
    prefill_chunk_len: options.PrefillChunkLen = None,
    device: options.Device = None,
    threads: options.Threads = None,
    kv_dtype: options.KvDtype = None,
    reuse_prompt: options.ReusePrompt = None,
    prefix_cache_mb: options.PrefixCacheMb = None,
    prefix_disk_mb: options.PrefixDiskMb = None,
    asr: options.Asr = None,
    pmode: options.Pmode = None,
    preemption: options.Preemption = None,
    img_pre_resize: options.ImgPreResize = None,
    quiet: options.Quiet = False,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Chat with a model here. A prompt that comes through a pipe is answered, and that is all."""
    settings = replace(options.settings_of(context), lanes=1)
    person = sys.stdin.isatty() and prompt is None
    if prompt in (None, "-") and not person:
        prompt = sys.stdin.read().strip()
        if not prompt:
            raise BadRequest("There is no prompt.", fix=f"echo Hello | flm run {model}")
    if not (person or log_level):
        console.configure(level="warning")  # what is asked for is the reply alone

    if settings.asr:
        console.warn("--asr is ignored: flm cannot run a speech model yet")

    from flm.cli.prompt import line_reader
    from flm.cli.repl import Repl
    from flm.cli.resident import load_resident
    from flm.cli.slash import COMMANDS

    repl = Repl(load_resident(model, settings, say=console.debug), settings)
    try:
        repl.show(image or ())
        if prompt is not None:
            _answer_once(repl.chat, prompt, repl.pictures)
        else:
            console.write(f"\nThis is {repl.resident.card.tag}. /? lists commands, /bye leaves.\n")
            commands = [f"/{name}" for name in COMMANDS]
            repl.run(line_reader(settings.model_path / "history" / "prompts", commands))
    finally:
        repl.resident.close()


def _answer_once(chat: "Chat", prompt: str, pictures: "Sequence[Picture]") -> None:
    from flm.core.chat import DeltaKind

    with closing(chat.ask(prompt, pictures)) as reply:
        for delta in reply:
            if delta.kind is DeltaKind.CONTENT:
                console.write(delta.text)
    console.write("\n")

"""The /commands of flm run: a function each, and its first line is its help."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flm import console
from flm.cli.list import show_models
from flm.core.chat import Message
from flm.core.sizes import counted
from flm.errors import BadRequest, BadSettings
from flm.hub.pull import pull as pull_model
from flm.numerals import real_number, whole_number
from flm.settings import load_settings
from flm.text.pictures import HEAD_BYTES, looks_like_picture

if TYPE_CHECKING:
    from flm.cli.repl import Repl

INPUT_BYTES_MAX = 16 * 2**20
_FILE = re.compile(r'"([^"]+)"\s*|(\S+)\s*')
EFFORTS = ("none", "low", "medium", "high")
# /set NAME: (field of SamplingParams, kind, lowest, highest)
SAMPLING: Mapping[str, tuple[str, type[int] | type[float], float, float]] = {
    "temp": ("temperature", float, 0, 10),
    "topk": ("top_k", int, 1, 2**31),
    "topp": ("top_p", float, 0, 1),
    "minp": ("min_p", float, 0, 1),
    "rep-pen": ("repetition_penalty", float, 0.01, 10),
    "freq-pen": ("frequency_penalty", float, -2, 2),
    "pres-pen": ("presence_penalty", float, -2, 2),
}


def obey(repl: "Repl", line: str) -> None:
    """Raises BadRequest for an unknown command, and what the command raises."""
    name, _, rest = line[1:].partition(" ")
    command = COMMANDS.get(name.lower())
    if command is None:
        raise BadRequest(f"There is no command /{name}.", fix="/? lists them")
    command(repl, rest.strip())


def show_help(repl: "Repl", rest: str) -> None:
    """this list"""
    seen: dict[Callable[[Repl, str], None], list[str]] = {}
    for name, command in COMMANDS.items():
        seen.setdefault(command, []).append("/" + name)
    for command, names in seen.items():
        first = (command.__doc__ or "").strip().splitlines()[0]
        console.write(f"  {', '.join(names):<16} {first}\n")
    console.write("  Enter sends; Alt-Enter or \\ then Enter begins a new line; Ctrl-C stops.\n")


def bye(repl: "Repl", rest: str) -> None:
    """leave (so does Ctrl-D)"""
    repl.over = True


def clear(repl: "Repl", rest: str) -> None:
    """forget the conversation"""
    repl.chat.clear()
    console.say("The conversation is forgotten")


def show(repl: "Repl", rest: str) -> None:
    """what model this is"""
    card, chat = repl.resident.card, repl.chat
    console.write(
        f"  Model:      {card.tag}\n"
        f"  Family:     {repl.resident.bundle.family}\n"
        f"  Parameters: {card.parameter_size or 'unknown'}\n"
        f"  Weights:    {card.quantization or 'as its file has them'}\n"
        f"  Context:    {repl.resident.context_length:,} tokens\n"
        f"  Device:     {repl.resident.device.name}\n"
        f"  System:     {chat.system or 'none'}\n"
        f"  Reply:      {_reply_bound(chat.max_tokens)}\n"
    )
    for name, (attribute, *_) in SAMPLING.items():
        value = getattr(chat.sampling, attribute)
        console.write(f"  {name + ':':<11} {'off' if value is None else value}\n")


def _reply_bound(tokens: int | None) -> str:
    return f"at most {tokens:,} tokens" if tokens else "as long as the context allows"


def status(repl: "Repl", rest: str) -> None:
    """how full the context is, and how fast the last reply was"""
    from flm.cli.repl import verbose_block

    if repl.chat.usage is None:
        console.say(f"Nothing said yet; room for {repl.resident.context_length:,} tokens")
    else:
        console.write(verbose_block(repl.chat.usage, repl.resident.context_length))


def show_kept(repl: "Repl", rest: str) -> None:
    """what is kept of the prompts that were read, and where"""
    from flm.cli.kept import draw_tree
    from flm.prefix.overview import overview, with_disk
    from flm.server.routes.prefix_replies import overview_reply

    resident = repl.resident
    asked = resident.thread.ask(lambda engine: (overview(engine.cache, ""), engine.cache.disk))
    view, disk = asked.result()
    view = with_disk(view, disk.store) if disk else view
    console.write(draw_tree(overview_reply(view, resident, [], text=True)))


def verbose(repl: "Repl", rest: str) -> None:
    """show speeds after each reply, or stop showing them"""
    repl.verbose = not repl.verbose
    console.say(f"Speeds are {'shown' if repl.verbose else 'not shown'} after each reply")


def think(repl: "Repl", rest: str) -> None:
    """let the model think before it answers, or not"""
    repl.chat.thinking = not repl.chat.thinking
    console.say(f"Thinking is {'on' if repl.chat.thinking else 'off'}, if the model can")


def history(repl: "Repl", rest: str) -> None:
    """show the conversation"""
    console.write(_transcript(repl))


def save(repl: "Repl", rest: str) -> None:
    """write the conversation to a file"""
    path = repl.settings.model_path / "history" / time.strftime("history_%H_%M_%m_%d_%Y.txt")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_transcript(repl), encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror}", fix="") from error
    console.say(f"Saved to {path}")


def load(repl: "Repl", rest: str) -> None:
    """MODEL: talk to another model; the conversation stays"""
    if not rest:
        raise BadRequest("/load needs a model.", fix="/load smollm2:135m")
    repl.open(rest, repl.settings)


def list_models(repl: "Repl", rest: str) -> None:
    """show the models"""
    show_models(repl.settings)


def pull(repl: "Repl", rest: str) -> None:
    """MODEL: fetch a model"""
    if not rest:
        raise BadRequest("/pull needs a model.", fix="/pull llama3.2:1b")
    with console.downloads() as progress:
        pull_model(rest, repl.settings, progress=progress, tower=True)
    console.say(f"{rest} is here: /load {rest}")


def set_value(repl: "Repl", rest: str) -> None:
    """NAME VALUE: change temp, sys-msg, ctx-len, gen-lim, r-eff and what /show shows"""
    if not rest:
        show(repl, rest)
        return
    name, _, value = rest.partition(" ")
    chat, value = repl.chat, value.strip()
    if name in SAMPLING:
        attribute, kind, low, high = SAMPLING[name]
        chat.set_sampling(**{attribute: _number(name, value, kind, low, high)})
    elif name == "sys-msg":
        chat.system = value
    elif name == "gen-lim":
        chat.max_tokens = int(_number(name, value, int, 1, 2**31))
    elif name == "r-eff" and value in EFFORTS:
        chat.reasoning_effort = value
    elif name == "ctx-len":
        wanted = load_settings({"ctx_len": value}, environ={}).ctx_len
        repl.open(repl.resident.card.tag, replace(repl.settings, ctx_len=wanted))
    else:
        raise BadRequest(
            f"/set {rest} is not understood.",
            fix="/set temp 0.7; names are "
            + ", ".join(
                [*SAMPLING, "sys-msg", "ctx-len", "gen-lim", f"r-eff ({'|'.join(EFFORTS)})"]
            ),
        )
    console.say(f"{name} is now {value or 'empty'}")


def add_input(repl: "Repl", rest: str) -> None:
    """ "FILE" PROMPT: ask about a text file, or a picture"""
    match = re.fullmatch(r'"([^"]+)"\s*(.*)|(\S+)\s*(.*)', rest, re.DOTALL)
    if match is None:
        raise BadRequest("/input needs a file.", fix='/input "notes.txt" What is this about?')
    path = Path(match[1] or match[3]).expanduser()
    question = match[2] or match[4] or ""
    try:
        with path.open("rb") as file:
            is_picture = looks_like_picture(file.read(HEAD_BYTES))
        if is_picture:
            _show(repl, [str(path)], question)
            return
        if path.stat().st_size > INPUT_BYTES_MAX:
            raise BadRequest(f"{path} is larger than 16 MiB.", fix="give a part of it")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadRequest(
            f"{path} cannot be read: {error.strerror}", fix="check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise BadRequest(
            f"{path} is neither UTF-8 text nor a picture.", fix="sound cannot be heard yet"
        ) from error
    repl.answer(f"{question}\n\n{text}" if question else text)


def add_image(repl: "Repl", rest: str) -> None:
    """FILE... [PROMPT]: show pictures, with a prompt or with the next message"""
    paths: list[str] = []
    while found := _FILE.match(rest):
        if paths and not (found[1] or Path(found[2]).expanduser().is_file()):
            break
        paths.append(found[1] or found[2])
        rest = rest[found.end() :]
    if not paths:
        raise BadRequest("/image needs a file.", fix='/image "photo.jpg" What is this?')
    _show(repl, paths, rest)


def _show(repl: "Repl", paths: Sequence[str], question: str) -> None:
    repl.show(paths)
    if question:
        repl.answer(question)
    else:
        console.say(f"With the next message: {counted(len(repl.pictures), 'picture')}")


def _transcript(repl: "Repl") -> str:
    system = f"system: {repl.chat.system}\n" if repl.chat.system else ""
    return system + "".join(f"{m.role}: {_said(m)}\n" for m in repl.chat.messages)


def _said(message: Message) -> str:
    count = len(message.pictures)
    return f"[{counted(count, 'picture')}] {message.content}" if count else f"{message.content}"


def _number(
    name: str, value: str, kind: type[int] | type[float], low: float, high: float
) -> int | float:
    try:
        number = whole_number(value) if kind is int else real_number(value)
        if low <= number <= high:
            return number
    except ValueError:
        pass
    whole = "a whole number" if kind is int else "a number"
    raise BadSettings(
        f"{name} is {value!r}, which is not {whole} from {low:g} to {high:g}", fix="/show shows it"
    )


COMMANDS: Mapping[str, Callable[["Repl", str], None]] = {
    "?": show_help,
    "help": show_help,
    "bye": bye,
    "exit": bye,
    "clear": clear,
    "show": show,
    "set": set_value,
    "status": status,
    "kept": show_kept,
    "verbose": verbose,
    "think": think,
    "history": history,
    "save": save,
    "load": load,
    "list": list_models,
    "pull": pull,
    "input": add_input,
    "image": add_image,
}

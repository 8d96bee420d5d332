"""The command line's options. What a setting takes and means is written once, in settings.py."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flm import console
from flm.settings import FIELDS, Settings, key, load_settings


def _setting(name: str, *also: str, panel: str, help: str = "") -> Any:
    """An option for the setting `name`; its value is checked where flm.toml's is. `help` is what it
    means to a command that means something else by it.

    A switch takes none: it is there, or says nothing.
    """
    bounds, kind, default = FIELDS[name].metadata, FIELDS[name].type, FIELDS[name].default
    if "switch" in bounds:
        metavar = None
    elif "choices" in bounds:
        metavar = "|".join(bounds["choices"])
    elif "duration" in bounds:
        metavar = "TIME"
    elif kind is bool:
        metavar = "0|1"
    else:
        metavar = "N" if "low" in bounds else key(name).split("-")[-1].rstrip("s").upper()
    shown = f" (default: {default})" if isinstance(default, str) or _is_number(default) else ""
    return typer.Option(
        f"--{key(name)}",
        *also,
        help=(help or bounds["help"]) + shown,
        metavar=metavar,
        rich_help_panel=panel,
        show_default=False,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


SERVER, MODEL, DEVICE, PREFIX = "Server", "Model", "Device", "Prefix cache"
MESSAGES = "Messages"
COMPATIBLE = "Accepted because FastFlowLM has them"

Words = list[str] | None
Word = str | None

Host = Annotated[Word, _setting("host", panel=SERVER)]
Port = Annotated[Word, _setting("port", "-p", panel=SERVER)]
ApiKeys = Annotated[Words, _setting("api_keys", panel=SERVER)]
# Of a server that runs.
ItsHost = Annotated[Word, _setting("host", panel=SERVER, help="address the server listens on")]
ItsPort = Annotated[Word, _setting("port", "-p", panel=SERVER, help="port the server listens on")]
ItsApiKeys = Annotated[Words, _setting("api_keys", panel=SERVER, help="key the server asks for")]
Cors = Annotated[Word, _setting("cors", panel=SERVER)]
CorsOrigins = Annotated[Words, _setting("cors_origins", panel=SERVER)]
AllowedHosts = Annotated[Words, _setting("allowed_hosts", panel=SERVER)]
Socket = Annotated[Word, _setting("connections_max", "-s", panel=SERVER)]
Ollama = Annotated[Word, _setting("ollama", panel=SERVER)]
QLen = Annotated[Word, _setting("queue_max", "-q", panel=SERVER)]
Drain = Annotated[Word, _setting("drain_s", panel=SERVER)]

KeepAlive = Annotated[Word, _setting("keep_alive", panel=MODEL)]
CtxLen = Annotated[Word, _setting("ctx_len", "-c", panel=MODEL)]
PrefillChunkLen = Annotated[Word, _setting("prefill_chunk_len", "--pcl", panel=MODEL)]

Device = Annotated[Word, _setting("device", panel=DEVICE)]
Threads = Annotated[Word, _setting("threads", panel=DEVICE)]
Lanes = Annotated[Word, _setting("lanes", panel=DEVICE)]
KvDtype = Annotated[Word, _setting("kv_dtype", panel=DEVICE)]
ParkedMb = Annotated[Word, _setting("parked_mb", panel=DEVICE)]
ParkedDiskMb = Annotated[Word, _setting("parked_disk_mb", panel=DEVICE)]

ReusePrompt = Annotated[Word, _setting("reuse_prompt", panel=PREFIX)]
PrefixCacheMb = Annotated[Word, _setting("prefix_cache_mb", panel=PREFIX)]
PrefixSlots = Annotated[Word, _setting("prefix_slots", panel=PREFIX)]
PrefixMinGain = Annotated[Word, _setting("prefix_min_gain", panel=PREFIX)]
PrefixPolicy = Annotated[Word, _setting("prefix_policy", panel=PREFIX)]
PrefixDiskMb = Annotated[Word, _setting("prefix_disk_mb", panel=PREFIX)]
PrefixDiskPath = Annotated[Word, _setting("prefix_disk_path", panel=PREFIX)]
PrefixDiskWriteMbS = Annotated[Word, _setting("prefix_disk_write_mb_s", panel=PREFIX)]
PrefixGhostsMb = Annotated[Word, _setting("prefix_ghosts_mb", panel=PREFIX)]
PrefixShared = Annotated[bool | None, _setting("prefix_shared", panel=PREFIX)]
InteractiveTtl = Annotated[Word, _setting("reuse_retained_interactive_ttl", panel=PREFIX)]
ReuseAudit = Annotated[Word, _setting("reuse_audit", panel=PREFIX)]
ReadAhead = Annotated[Word, _setting("read_ahead", panel=PREFIX)]

SystemMessagePolicy = Annotated[Word, _setting("system_message_policy", panel=MESSAGES)]
DeveloperMessagePolicy = Annotated[Word, _setting("developer_message_policy", panel=MESSAGES)]

Pmode = Annotated[Word, _setting("pmode", panel=COMPATIBLE)]
Preemption = Annotated[Word, _setting("preemption", panel=COMPATIBLE)]
Asr = Annotated[Word, _setting("asr", "-a", panel=COMPATIBLE)]
Embed = Annotated[Word, _setting("embed", "-e", panel=COMPATIBLE)]
ImgPreResize = Annotated[Word, _setting("img_pre_resize", "-r", panel=COMPATIBLE)]

LogLevel = Annotated[Word, _setting("log_level", panel="Options")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="settings file (default: ./flm.toml, then ~/.config/flm/flm.toml)",
        metavar="FILE",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="no emoji, no moving bars")]
Json = Annotated[bool, typer.Option("--json", "-j", help="print JSON for programs")]
MODEL_HELP = (
    "a tag that flm list shows, a .gguf file, a Hugging Face folder, or hf:org/repo/file.gguf"
)
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
AnyModel = Annotated[Word, typer.Argument(metavar="[MODEL]", help=MODEL_HELP)]


def settings_of(context: typer.Context) -> Settings:
    """The settings of this command, from everywhere they may stand; the console heeds them."""
    given = context.params
    flags = {name: value for name, value in given.items() if name in FIELDS}
    config = given.get("config")
    settings = load_settings(flags, config=Path(config) if config else None)
    level = "error" if given.get("json_") else settings.log_level
    console.configure(level=level, bars=not given.get("quiet"))
    return settings

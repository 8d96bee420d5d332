"""flm serve"""

import json
import os

import typer

from flm import console
from flm.cli import options
from flm.cli.remote import server_url
from flm.cli.resident import load_resident, prepare_resident
from flm.errors import UnsupportedFeature
from flm.hub.reference import resolve
from flm.server.residence.shelf import shelved
from flm.settings import Settings

DEFAULT_MODEL = "smollm2:135m"


def command(
    context: typer.Context,
    model: options.AnyModel = None,
    host: options.Host = None,
    port: options.Port = None,
    api_keys: options.ApiKeys = None,
    cors: options.Cors = None,
    cors_origins: options.CorsOrigins = None,
    allowed_hosts: options.AllowedHosts = None,
    connections_max: options.Socket = None,
    queue_max: options.QLen = None,
    ollama: options.Ollama = None,
    drain_s: options.Drain = None,
    keep_alive: options.KeepAlive = None,
    ctx_len: options.CtxLen = None,
    prefill_chunk_len: options.PrefillChunkLen = None,
    device: options.Device = None,
    threads: options.Threads = None,
    lanes: options.Lanes = None,
    kv_dtype: options.KvDtype = None,
    parked_mb: options.ParkedMb = None,
    parked_disk_mb: options.ParkedDiskMb = None,
    reuse_prompt: options.ReusePrompt = None,
    prefix_cache_mb: options.PrefixCacheMb = None,
    prefix_slots: options.PrefixSlots = None,
    prefix_min_gain: options.PrefixMinGain = None,
    prefix_policy: options.PrefixPolicy = None,
    prefix_disk_mb: options.PrefixDiskMb = None,
    prefix_disk_path: options.PrefixDiskPath = None,
    prefix_disk_write_mb_s: options.PrefixDiskWriteMbS = None,
    prefix_ghosts_mb: options.PrefixGhostsMb = None,
    prefix_shared: options.PrefixShared = None,
    reuse_retained_interactive_ttl: options.InteractiveTtl = None,
    reuse_audit: options.ReuseAudit = None,
    read_ahead: options.ReadAhead = None,
    system_message_policy: options.SystemMessagePolicy = None,
    developer_message_policy: options.DeveloperMessagePolicy = None,
    pmode: options.Pmode = None,
    preemption: options.Preemption = None,
    asr: options.Asr = None,
    embed: options.Embed = None,
    img_pre_resize: options.ImgPreResize = None,
    quiet: options.Quiet = False,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Answer OpenAI-style requests over HTTP. Fetches and compiles the model first if need be."""
    settings = options.settings_of(context)
    _say_what_is_ignored(settings, model)
    if model is None and not _writers(settings):
        model = DEFAULT_MODEL
        console.say(f"No model named: serving {model} (flm list shows the others)")
    if port not in (None, "-1"):
        console.say(f"Using user-specified port: {settings.port}")
    elif os.environ.get("FLM_SERVE_PORT"):
        console.say(f"Using environment-specified port: {settings.port}")
    _serve(model, settings)


def _serve(model: str | None, settings: Settings) -> None:
    """None: whichever of the installed a request names is loaded then."""
    wanted = resolve(model) if model else None  # a wrong name is told before anything is opened
    from flm.engine.beside import Beside
    from flm.engine.residency import Resident
    from flm.hub.prepare import prepare_model
    from flm.models.cards import encoders
    from flm.server.serve import run_server

    def say_ready(resident: Resident | None) -> None:
        if resident:
            tag = resident.card.tag
            served = f"{tag}, {resident.context_length:,} tokens of context"
        else:
            tags = _writers(settings)
            tag, served = tags[0], f"what requests name: {', '.join(tags)}"
        for line in ready_lines(settings, served, tag):
            console.say(line)

    beside = Beside()
    if settings.embed:
        prepare_model(encoders()[0].tag, settings)
    console.say(f"Starting server on port {settings.port}...")
    run_server(
        settings,
        (wanted.text, lambda: load_resident(wanted.text, settings, beside=beside))
        if wanted
        else None,
        prepare=lambda text: prepare_resident(text, settings, beside),
        ready=say_ready,
        beside=beside,
    )


def _writers(settings: Settings) -> list[str]:
    """Installed models that may be asked for replies."""
    return [each.card.tag for each in shelved(settings) if not each.card.embeds]


def ready_lines(settings: Settings, served: str, tag: str) -> list[str]:
    """Where the server is, what it serves and what to try first: a line to paste into a shell."""
    page = server_url(settings)
    url = f"{page}/v1"
    body = json.dumps({"model": tag, "messages": [{"role": "user", "content": "Say hello."}]})
    quoted = body.replace("'", "'\\''")
    key = " -H 'Authorization: Bearer YOUR_KEY'" if settings.api_keys else ""
    return [
        f"WebServer started on port {settings.port}: {url} serves {served}",
        f"Try {page} in a browser, or:\n"
        f"  curl {url}/chat/completions{key} -H 'Content-Type: application/json' -d '{quoted}'",
        "Press Ctrl+C to stop.",
    ]


def _say_what_is_ignored(settings: Settings, model: str | None) -> None:
    if settings.asr and model is None:
        raise UnsupportedFeature(
            "--asr asks for a speech model, which flm cannot run yet.", fix="flm serve smollm2:135m"
        )
    if settings.asr:
        console.warn("--asr is ignored: flm cannot run a speech model yet")
    if settings.preemption:
        console.warn("--preemption is ignored: it has no effect on Linux")

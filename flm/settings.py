"""Every knob and every limit, in one frozen object: defaults, then flm.toml, FLM_*, flags.

A setting has one name: `ctx_len` here, `ctx-len` in flm.toml, FLM_CTX_LEN, `--ctx-len`.
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flm.errors import BadSettings
from flm.numerals import duration_s, real_number, whole_number

TYPO_RATIO_MIN = 0.85  # below, an unknown FLM_ variable is somebody else's
ON_OFF = ("on", "off")
NPU, NPU_SIM = NPUS = ("npu", "npu-sim")  # the second: its kernels on the CPU, in a simulator
DEVICES = ("auto", "cpu", *NPUS)
SYSTEM = ("merge", "strict")
DEVELOPER = ("inplace", "into-system", "after-system", "one-after-system", "reject")
KUBERNETES = ("FLM_SERVICE_", "FLM_PORT")  # what it sets for a service called flm


def _setting(default: Any, help: str, *, key: str = "", env: str = "", **bounds: Any) -> Any:
    """A field with what a reader of its value must know: `low`, `high`, `choices`, `switch`."""
    return field(default=default, metadata={"help": help, "key": key, "env": env, **bounds})


@dataclass(frozen=True, slots=True)
class Settings:
    """Built once, passed down. Units stand in the names; None means "decide from what is here"."""

    # where things live
    model_path: Path = field(
        default_factory=lambda: Path.home() / ".config" / "flm",
        metadata={"help": "folder under which models are kept", "key": "", "env": ""},
    )
    # the server
    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(52625, "port to listen on", env="FLM_SERVE_PORT", low=1, high=65535)
    api_keys: tuple[str, ...] = _setting(
        (), "key a client must send; repeat for several", key="api-key", env="FLM_API_KEY"
    )
    cors: bool = _setting(True, "1 lets web pages call the server, 0 does not")
    cors_origins: tuple[str, ...] = _setting((), "web origins that may call the server, or *")
    allowed_hosts: tuple[str, ...] = _setting((), "further host names clients may call us by")
    connections_max: int = _setting(
        1024, "most connections at once", key="socket", low=1, high=65536
    )
    queue_max: int = _setting(64, "most requests that wait", key="q-len", low=0, high=65536)
    body_bytes_max: int = _setting(64 * 2**20, "largest request body", low=1024, high=2**31)
    upload_s_max: float = _setting(
        120.0, "longest a request's head or body may take to arrive", low=0.1, high=86_400
    )
    image_bytes_max: int = _setting(
        20 * 2**20, "largest image file in a request", low=1024, high=2**31
    )
    image_pixels_max: int = _setting(2**25, "most pixels of an image", low=1, high=2**26)
    images_max: int = _setting(256, "most images in a request", low=1, high=65_536)
    image_cpu_s_max: float = _setting(
        30.0, "seconds of a core that a request's images may take to decode", low=0.1, high=3600
    )
    image_max_tokens: int = _setting(
        1024, "most tokens that an image becomes; larger ones are scaled down", low=4, high=16_384
    )
    image_cache_mb: int = _setting(
        128,
        "MiB for what images were made into, so that none is looked at twice",
        low=0,
        high=2**20,
    )
    image_decoded_mb: int = _setting(
        128,
        "MiB for images as they were decoded and scaled, so that no turn does so again",
        low=0,
        high=2**20,
    )
    messages_max: int = _setting(65_536, "most messages in a request", low=1, high=2**24)
    ollama: bool = _setting(True, "answer at Ollama's routes, below /api, too", choices=ON_OFF)
    tools_max: int = _setting(4096, "most tools in a request", low=1, high=2**20)
    ping_interval_s: float = _setting(5.0, "pause between pings while waiting", low=0.1, high=60)
    drain_s: float = _setting(
        10.0,
        "seconds that running requests get once the server is to stop",
        key="drain",
        low=0,
        high=86_400,
    )
    log_level: str = _setting(
        "info", "how much is printed", choices=("debug", "info", "warning", "error")
    )
    # the device
    device: str = _setting("auto", "where the model runs", choices=DEVICES)
    threads: int | None = _setting(
        None, "CPU threads (default: one a physical core)", low=1, high=1024
    )
    lanes: int = _setting(4, "requests answered at the same time", low=1, high=256)
    kv_dtype: str = _setting("auto", "precision of keys and values", choices=("auto", "f32", "f16"))
    # the model
    keep_alive: float | None = _setting(
        None,
        "how long a model that nobody asks stays loaded: 300, 5m, or -1 (default) for ever",
        duration=True,
    )
    ctx_len: int | None = _setting(
        None, "context length in tokens (default: the model's)", low=512, high=2**24
    )
    prefill_chunk_len: int = _setting(
        4096, "most tokens of a prompt read in one go", low=16, high=2**20
    )
    chunk_ms_target: int = _setting(250, "how long one go should take", low=1, high=60_000)
    # the prefix cache
    reuse_prompt: bool = _setting(
        True, "off reads every prompt from its first token and keeps nothing", choices=ON_OFF
    )
    prefix_cache_mb: int | None = _setting(
        None,
        "memory for prompts already read; 0 keeps none there (default: the model's, else 4096)",
        low=0,
        high=2**24,
    )
    prefix_slots: int | None = _setting(
        None, "most kept prompts (default: the model's, else as many as fit)", low=1, high=2**20
    )
    prefix_min_gain: int = _setting(
        64, "tokens a prompt must add to be kept as well", low=0, high=2**24
    )
    prefix_policy: str = _setting(
        "pinning", "which kept prompt goes first", choices=("pinning", "density", "flm")
    )
    prefix_disk_mb: int = _setting(
        4096,
        "disk for prompts already read, which outlive a restart; 0 for none",
        low=0,
        high=2**24,
    )
    prefix_disk_path: Path | None = field(
        default=None,
        metadata={
            "help": "folder for them (default: prefix under model-path)",
            "key": "",
            "env": "",
        },
    )
    prefix_disk_write_mb_s: int = _setting(
        64, "most that is written there a second", low=1, high=2**20
    )
    prefix_ghosts_mb: int = _setting(
        16, "memory for what is known of prompts no longer kept, to say why", low=0, high=2**16
    )
    parked_mb: int = _setting(
        1024, "memory for lanes that programs gave up to persons; 0 for none", low=0, high=2**24
    )
    parked_disk_mb: int = _setting(
        4096,
        "disk for those that find no room there; 0 for none, as if prefix-disk-mb is 0",
        low=0,
        high=2**24,
    )
    prefix_shared: bool = _setting(False, "share kept prompts across API keys", switch=True)
    reuse_retained_interactive_ttl: int = _setting(
        300, "seconds without use after which a chat ranks as an agent's", low=0, high=2**31
    )
    reuse_audit: int = _setting(
        0, "read one in N reused prompts again while idle, and compare; 0: none", low=0, high=2**31
    )
    read_ahead: bool = _setting(
        True, "read while idle what the next turn will begin with", choices=ON_OFF
    )
    grammars_max: int = _setting(
        16, "most grammars of tools and schemas that stay compiled", low=0, high=4096
    )
    # what of a conversation the template gets to see
    system_message_policy: str = _setting(
        "merge", "several system messages: make one of the first, or refuse", choices=SYSTEM
    )
    developer_message_policy: str = _setting(
        "inplace", "where a developer message goes", choices=DEVELOPER
    )
    # FastFlowLM's, accepted so that what drives it drives us
    pmode: str = _setting(
        "performance",
        "NPU power mode; has an effect on Windows only",
        choices=("default", "powersaver", "balanced", "performance", "turbo"),
    )
    preemption: bool = _setting(False, "has no effect on Linux")
    asr: bool = _setting(False, "1 also loads a speech model; not supported yet")
    embed: bool = _setting(False, "1 also fetches an embedding model, loaded when first asked")
    img_pre_resize: int = _setting(
        2,
        "images are scaled down to this height first: 1 to 8 for 480 to 4320 pixels, 0 not at all",
        low=0,
        high=8,
    )


FIELDS: Mapping[str, "Field[Any]"] = MappingProxyType({f.name: f for f in fields(Settings)})


def key(name: str) -> str:
    """What a field is called in flm.toml and, after two dashes, on the command line."""
    return FIELDS[name].metadata["key"] or name.replace("_", "-")


def variable(name: str) -> str:
    return FIELDS[name].metadata["env"] or "FLM_" + key(name).upper().replace("-", "_")


def expected(name: str) -> str:
    """The values a field takes, in words."""
    kind, bounds = FIELDS[name].type, FIELDS[name].metadata
    if "choices" in bounds:
        return "one of " + ", ".join(bounds["choices"])
    if "duration" in bounds:
        return "seconds, or a time such as 5m"
    if kind is bool:
        return "1 or 0"
    if kind is float:
        return f"a number from {bounds['low']:g} to {bounds['high']:g}"
    if kind in (int, int | None):
        return f"a whole number from {bounds['low']} to {bounds['high']}"
    return (
        "a path"
        if kind in (Path, Path | None)
        else "a list of words"
        if kind is not str
        else "a word"
    )


def load_settings(
    flags: Mapping[str, object] = MappingProxyType({}),
    *,
    config: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Settings of this run. `flags` maps field names to what was given; None means not given.

    Raises BadSettings naming the key, its value and what it takes.
    """
    values = _from_file(config)
    values |= _from_environment(environ)
    for name, value in flags.items():
        # FastFlowLM writes -1 where nothing was chosen.
        unset = value in ("-1", -1) and "duration" not in FIELDS[name].metadata
        if value is not None and value != [] and not unset:
            values[name] = _read(name, value, place=f"--{key(name)}")
    return Settings(**values)


def config_file(config: Path | None) -> Path | None:
    """The flm.toml in use: the one asked for, else ./flm.toml, else the user's."""
    if config is not None:
        return config
    found = (Path("flm.toml"), Path.home() / ".config" / "flm" / "flm.toml")
    return next((path for path in found if path.is_file()), None)


def _from_file(config: Path | None) -> dict[str, Any]:
    path = config_file(config)
    if path is None:
        return {}
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSettings(
            f"{path} cannot be read: {error.strerror}", fix="check the path given to --config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSettings(
            f"{path} is not TOML: {error}", fix="a line looks like: ctx-len = 16384"
        ) from error
    names = {key(name): name for name in FIELDS}
    values = {}
    for given, value in table.items():
        name = names.get(given.replace("_", "-"))
        if name is None:
            raise BadSettings(
                f"{path}: {given} = {value!r} is not a setting",
                fix=_near(given, names) or f"settings are {', '.join(sorted(names))}",
            )
        values[name] = _read(name, value, place=f"{path}: {key(name)}")
    return values


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    names = {variable(name): name for name in FIELDS}
    values = {}
    for given, value in environ.items():
        if not given.startswith("FLM_") or not value:
            continue
        if given in names:
            values[names[given]] = _read(names[given], value, place=given)
        elif not given.startswith(KUBERNETES) and (hint := _near(given, names)):
            raise BadSettings(f"{given}={value} is not a setting", fix=hint)
    return values


def _near(given: str, names: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(given, names, n=1, cutoff=TYPO_RATIO_MIN)
    return f"did you mean {near[0]}?" if near else ""


def _read(name: str, value: object, *, place: str) -> Any:
    try:
        return _convert(name, value)
    except ValueError as error:
        default, low = FIELDS[name].default, FIELDS[name].metadata.get("low")
        example = default if isinstance(default, str | int) else "one, two" if low is None else low
        if isinstance(example, bool):
            example = FIELDS[name].metadata.get("choices", ("1",))[0]
        raise BadSettings(
            f"{place} is {value!r}, which is not {expected(name)}",
            fix=f"a value that it takes: {example}",
            param=key(name),
        ) from error


def _convert(name: str, value: object) -> Any:
    """The value in the field's type; ValueError if it is no such value."""
    kind, bounds = FIELDS[name].type, FIELDS[name].metadata
    if kind is bool:
        return _truth(value)
    if "duration" in bounds:
        return duration_s(value)
    if kind == tuple[str, ...]:
        return _words(value)
    if kind in (int, int | None, float):
        number = _number(value, whole=kind is not float)
        if not bounds["low"] <= number <= bounds["high"]:
            raise ValueError(number)
        return number
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(value)
    if "choices" in bounds and value not in bounds["choices"]:
        raise ValueError(value)
    return Path(value).expanduser() if kind in (Path, Path | None) else value


def _truth(value: object) -> bool:
    word = str(value).lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError(value)


def _number(value: object, *, whole: bool) -> int | float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(value)
    if whole and isinstance(value, float):
        raise ValueError(value)
    if isinstance(value, str):
        return whole_number(value.strip()) if whole else real_number(value.strip())
    return value if whole else float(value)


def _words(value: object) -> tuple[str, ...]:
    """A list of words, or a text with commas between them, or a list of such texts."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ValueError(value)
    words = [word.strip() for text in texts for word in text.split(",")]
    return tuple(word for word in words if word)

"""Every knob and every limit, in one frozen object: defaults, then flm.toml, FLM_*, flags."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """Built once, passed down. Units stand in the names; None means "decide from the machine"."""

    # where things live
    model_path: Path = field(default_factory=lambda: Path.home() / ".config" / "flm")
    # the server
    host: str = "127.0.0.1"
    port: int = 52625
    api_keys: tuple[str, ...] = ()
    cors: bool = True
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    connections_max: int = 1024  # --socket
    queue_max: int = 64  # --q-len
    body_bytes_max: int = 64 * 2**20
    messages_max: int = 65_536
    ping_interval_s: float = 5.0
    log_level: str = "info"
    # the device
    device: str = "auto"
    threads: int | None = None
    lanes: int = 4
    kv_dtype: str = "auto"
    # the model
    ctx_len: int | None = None
    prefill_chunk_len: int = 4096
    chunk_ms_target: int = 250
    # the prefix cache
    prefix_cache_mb: int = 4096
    prefix_slots: int | None = None
    prefix_min_gain: int = 64
    # FastFlowLM's, accepted so that what drives it drives us
    pmode: str = "performance"
    preemption: bool = False
    asr: bool = False
    embed: bool = False
    img_pre_resize: int = 2

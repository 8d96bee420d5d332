"""A resident model: loaded on a device, its engine running, ready to be asked."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from flm.core.picture import Sight
from flm.core.sizes import MIB
from flm.devices.device import Device
from flm.engine.album import Album
from flm.engine.beside import Beside
from flm.engine.engine import Engine
from flm.engine.plan import (
    Carried,
    Limits,
    MemoryPlan,
    beside_bytes,
    context_length_of,
    looking_bytes,
    pictures_bytes,
    plan_memory,
    require_room,
)
from flm.engine.reader import Reader
from flm.engine.reuse import open_cache
from flm.engine.thread import FLUSH_S_MAX, EngineThread
from flm.errors import BadRequest
from flm.graph.bundle import TOWER, WEIGHTS, Bundle
from flm.memory.lanes import Lanes
from flm.memory.parked import Parked
from flm.models.cards import Card
from flm.prefix.boundaries import BoundaryFinder
from flm.prefix.cache import PrefixCache
from flm.prefix.volatility import Volatility
from flm.runner.encodings import Encodings
from flm.runner.eyes import Eyes
from flm.runner.runner import Runner
from flm.settings import NPU, NPUS, Settings
from flm.text.grammar import Grammars
from flm.text.template import ChatTemplate
from flm.text.tokenizer import Tokenizer


def quiet(text: str) -> None:
    """Nobody wants to be told."""


@dataclass(frozen=True, slots=True)
class Resident:
    """`close` ends its engine and gives the device back."""

    card: Card
    bundle: Bundle
    plan: MemoryPlan
    tokenizer: Tokenizer
    template: ChatTemplate
    boundaries: BoundaryFinder
    grammars: Grammars
    thread: EngineThread
    device: Device
    reuse: bool = True  # whether requests may begin where kept prompts end
    read_ahead: bool = False  # whether what the next turn begins with is read while idle
    volatility: Volatility = field(default_factory=Volatility)
    album: Album = field(default_factory=Album)

    @property
    def sight(self) -> Sight | None:
        """How it sees; None: it reads text only."""
        return self.bundle.sight

    def reader(self, settings: Settings) -> Reader:
        """Of one request of this program's own."""
        return Reader(self.card.tag, settings, self.sight, album=self.album.visit())

    @property
    def context_length(self) -> int:
        return self.plan.context_length

    def close(self, flush_s: float = FLUSH_S_MAX) -> None:
        """`flush_s`: how long what is kept in memory only may take on its way to the disk."""
        self.thread.close(flush_s)
        self.device.close()

    def hurry(self) -> None:
        """While it is being closed, by another thread: what is not on the disk stays away."""
        self.thread.hurry()


def load(
    bundle: Bundle,
    card: Card,
    settings: Settings,
    *,
    say: Callable[[str], None] = quiet,
    warn: Callable[[str], None] = quiet,
    clock: Callable[[], float] = time.monotonic,
    beside: Beside | None = None,
) -> Resident:
    """Plans memory, opens the device, loads the graph and starts the engine.

    Raises NoRoom, DeviceUnavailable, BadModelFile or BadRequest.
    """
    bundle = bundle.blind() if settings.device in NPUS else bundle
    beside = beside or Beside()
    plan = planned(bundle, card, settings, beside)
    for line in plan.lines():
        say(line)
    tokenizer = Tokenizer.load(bundle.folder)
    template = ChatTemplate.load(
        bundle.folder, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token
    )
    device = open_device(settings, capacity=plan.context_length + 1, warn=warn)
    try:
        limits = replace(Limits.of(settings, card), bytes=plan.prefix)
        beside.left.fit(limits.bytes, limits.slots)
        cache = partial(open_cache, say=say, warn=warn, clock=clock, left=beside.left)
        engine = _engine(bundle, plan, settings, limits, device, tokenizer, cache, warn, clock)
    except Exception:
        device.close()
        raise
    return Resident(
        card=card,
        bundle=bundle,
        plan=plan,
        tokenizer=tokenizer,
        template=template,
        boundaries=BoundaryFinder(template, tokenizer, sight=bundle.sight),
        grammars=Grammars(tokenizer, kept_max=settings.grammars_max),
        thread=EngineThread(engine),
        device=device,
        reuse=settings.reuse_prompt,
        read_ahead=settings.read_ahead and plan.prefix > 0,
        album=Album(settings.image_decoded_mb * MIB),
    )


def planned(
    bundle: Bundle, card: Card, settings: Settings, beside: Beside | None = None
) -> MemoryPlan:
    """What loading it takes. Raises NoRoom where this machine has not as much, BadRequest."""
    from flm.devices.machine import memory_bytes

    if bundle.embeds:
        raise BadRequest(
            f"{card.tag} makes embeddings and writes no replies",
            fix="ask another model for replies; POST /v1/embeddings is for this one",
            param="model",
        )
    plan = plan_memory(
        {
            dtype: Carried(each.row_bytes, each.state_bytes)
            for dtype, each in bundle.layouts.items()
        },
        file_bytes=(bundle.folder / WEIGHTS).stat().st_size,
        context_length=context_length_of(
            bundle.context_length, card.context_length, settings.ctx_len
        ),
        lanes=settings.lanes,
        kv_dtype=settings.kv_dtype,
        prefix_bytes=Limits.of(settings, card).bytes,
        machine_bytes=memory_bytes(),
        parked_bytes=settings.parked_mb * MIB,
        pictures_bytes=pictures_bytes(settings) if bundle.sight else 0,
        looking_bytes=looking_bytes(bundle.sight, settings) if bundle.sight else 0,
        beside_bytes=beside_bytes(settings, beside.encoders if beside else {}),
        on_npu=settings.device in NPUS,
    )
    require_room(plan)
    return plan


def _engine(
    bundle: Bundle,
    plan: MemoryPlan,
    settings: Settings,
    limits: Limits,
    device: Device,
    tokenizer: Tokenizer,
    open_cache: Callable[..., PrefixCache],
    warn: Callable[[str], None],
    clock: Callable[[], float],
) -> Engine:
    layout = bundle.layouts[plan.row_dtype]
    program = device.load(bundle.graph(plan.row_dtype, plan.context_length))
    lanes = Lanes(device, layout, count=plan.lanes, capacity_max=plan.context_length + 1)
    eyes = open_eyes(bundle, settings) if bundle.sight else None
    runner = Runner(program, device, layout, lanes, vocabulary=bundle.vocabulary, eyes=eyes)
    cache = open_cache(bundle, layout, plan, settings, limits, device=device, grid=program.grid)
    return Engine(
        runner,
        cache,
        tokenizer,
        lanes=lanes,
        context_length=plan.context_length,
        queue_max=settings.queue_max,
        chunk_len_max=settings.prefill_chunk_len,
        chunk_s_target=settings.chunk_ms_target / 1000,
        clock=clock,
        audit_every=settings.reuse_audit,
        parked=Parked(
            layout,
            host_max=plan.parked,
            disk_max=settings.parked_disk_mb * MIB if settings.prefix_disk_mb else 0,
            folder=settings.model_path / "parked",
            warn=warn,
        ),
        encodings=Encodings(eyes) if eyes else None,
    )


def open_eyes(bundle: Bundle, settings: Settings) -> Eyes:
    """The tower of a model that sees, on the CPU."""
    from flm.devices.cpu import open_session
    from flm.devices.machine import cores_physical

    assert bundle.sight
    threads = settings.threads or cores_physical()
    session = open_session(str(bundle.folder / TOWER), bundle.folder, threads=threads)
    width = session.get_outputs()[0].shape[-1]
    bytes_max = settings.image_cache_mb * MIB
    return Eyes(session, bundle.sight, width=width, bytes_max=bytes_max)


def require_device(settings: Settings) -> None:
    """Raises DeviceUnavailable for an NPU that is not here, or not to be used. Takes a moment."""
    from flm.devices.readiness import require_npu

    if settings.device == NPU:
        require_npu()


def open_device(settings: Settings, *, capacity: int, warn: Callable[[str], None]) -> Device:
    """The device that `--device` names, after its self-test, for up to `capacity` rows a lane."""
    from flm.devices.cpu import CpuDevice
    from flm.devices.machine import cores_physical
    from flm.devices.selftest import self_test

    require_device(settings)
    self_test()
    threads = settings.threads or cores_physical()
    if settings.device in ("auto", "cpu"):
        return CpuDevice(threads=threads)
    from flm.devices.npu import NEVER_RAN, SIMULATED
    from flm.devices.xrt.device import XrtDevice

    warn(NEVER_RAN if settings.device == NPU else SIMULATED)
    return XrtDevice(settings.device, threads=threads, capacity=capacity, say=warn)

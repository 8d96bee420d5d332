"""The prefix cache that a model is loaded with, and the disk that it goes on keeping on."""

from collections.abc import Callable

from flm.core.sizes import MIB, counted, mib
from flm.devices.device import Device
from flm.engine.plan import Limits, MemoryPlan
from flm.graph.bundle import Bundle
from flm.memory.layout import MemoryLayout
from flm.prefix.cache import PrefixCache
from flm.prefix.disk.identity import Identity, identity_of
from flm.prefix.disk.store import DiskStore
from flm.prefix.disk.stored import DiskTaken, DiskUnusable
from flm.prefix.disk.tier import DiskTier
from flm.prefix.eviction import POLICIES
from flm.prefix.left import Left
from flm.settings import Settings


def open_cache(
    bundle: Bundle,
    layout: MemoryLayout,
    plan: MemoryPlan,
    settings: Settings,
    limits: Limits,
    *,
    device: Device,
    grid: int,
    say: Callable[[str], None],
    warn: Callable[[str], None],
    clock: Callable[[], float],
    left: Left,
) -> PrefixCache:
    """`limits.bytes` as the plan has it. Without a disk it is what the model has left, if any."""
    context_length = plan.context_length
    identity = identity_of(
        bundle, plan.row_dtype, device=device.name, context_length=context_length
    )
    wanted = limits.bytes and settings.prefix_disk_mb
    disk = _open_disk(identity, layout, settings, say, warn) if wanted else None
    cache = PrefixCache(
        bytes_max=limits.bytes,
        slots_max=limits.slots,
        gain_min=settings.prefix_min_gain,
        row_bytes=layout.row_bytes,
        state_bytes=layout.state_bytes,
        log=say,
        warn=warn,
        read_min=layout.read_min,
        first_min=layout.first_min,
        grid=grid,
        policy=POLICIES[settings.prefix_policy],
        interactive_ttl_s=settings.reuse_retained_interactive_ttl,
        ghosts_max=settings.prefix_ghosts_mb * MIB if limits.bytes else 0,
        disk=disk,
        transit=limits.transit,
        clock=clock,
    )
    return left.come(identity, cache)


def _open_disk(
    identity: Identity,
    layout: MemoryLayout,
    settings: Settings,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> DiskTier | None:
    """None where nothing can be kept, which is told."""
    root = settings.prefix_disk_path or settings.model_path / "prefix"
    bytes_max = settings.prefix_disk_mb * MIB
    try:
        store = DiskStore(root, identity, layout, bytes_max=bytes_max, warn=warn)
    except DiskTaken:
        warn(
            "Prefix cache: another flm has the disk, so this one keeps in memory only "
            "(or: --prefix-disk-path)"
        )
        return None
    except DiskUnusable as error:
        warn(f"Prefix cache: nothing is kept on disk: {error.message}; {error.fix}")
        return None
    say(
        f"Prefix cache on disk: {counted(store.snapshot_count, 'snapshot')}, "
        f"{mib(store.bytes_kept)} of up to {mib(bytes_max)}, in {root} "
        "(--prefix-disk-mb 0 turns it off)"
    )
    return DiskTier(store, write_bytes_per_s_max=settings.prefix_disk_write_mb_s * MIB)

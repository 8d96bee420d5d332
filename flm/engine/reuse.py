"""The prefix cache that a model is loaded with, and the disk that it goes on keeping on."""

from collections.abc import Callable

from flm.core.sizes import MIB, counted, mib
from flm.devices.device import Device
from flm.engine.plan import Limits, MemoryPlan
from flm.graph.bundle import Bundle
from flm.memory.layout import MemoryLayout
from flm.prefix.cache import PrefixCache
from flm.prefix.disk.identity import identity_of
from flm.prefix.disk.store import DiskStore
from flm.prefix.disk.stored import DiskUnusable
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
    disk, identity = (
        None,
        identity_of(bundle, plan.row_dtype, device=device.name, context_length=plan.context_length),
    )
    if limits.bytes and settings.prefix_disk_mb:
        root = settings.prefix_disk_path or settings.model_path / "prefix"
        try:
            store = DiskStore(
                root,
                identity,
                layout,
                bytes_max=settings.prefix_disk_mb * MIB,
                warn=warn,
            )
        except DiskUnusable as error:
            warn(f"Prefix cache: nothing is kept on disk: {error.message}; {error.fix}")
        else:
            say(
                f"Prefix cache on disk: {counted(store.snapshot_count, 'snapshot')}, "
                f"{mib(store.bytes_kept)} of up to {mib(settings.prefix_disk_mb * MIB)}, in {root} "
                "(--prefix-disk-mb 0 turns it off)"
            )
            disk = DiskTier(
                store,
                write_bytes_per_s_max=settings.prefix_disk_write_mb_s * MIB,
            )
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

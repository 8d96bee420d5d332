"""What each tile must hold: memory, program, channels, descriptors, locks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from npu_kernels.iron_sim.channels import Channel, channels
from npu_kernels.iron_sim.finding import Finding, advice
from npu_kernels.iron_sim.limits import (
    ARGUMENTS_ADVISED,
    CORE_DATA_BYTES,
    CORE_PROGRAM_BYTES,
    DMAS,
    JOIN_ADVISED,
    L1_MULTIPLE_BYTES,
    MEMTILE_DATA_BYTES,
    STACK_BYTES,
)
from npu_kernels.iron_sim.lower import Lowered
from npu_kernels.iron_sim.pools import Pool
from npu_kernels.iron_sim.record import Record, Sites, Tile, Worker

# What code takes, by eye: bodies with about forty calls and eighty acquires have needed 10 KB.
CALL_BYTES, ARGUMENT_BYTES, LOCK_BYTES, LOOP_BYTES, FRAME_BYTES = 64, 16, 48, 64, 512


def budgets(record: Record, lowered: Lowered) -> Iterator[Finding]:
    yield from _places(record)
    yield from _core_memory(record, lowered)
    yield from _memtile_memory(lowered)
    yield from _program(record)
    used = channels(record)
    yield from _channels(used)
    yield from _descriptors(used, lowered)
    yield from _locks(record, lowered)
    yield from _host(record)
    for link in record.links:
        if len(link.sources) > JOIN_ADVISED:
            what = f"joins {len(link.sources)} fifos; {JOIN_ADVISED} are known to be safe"
            yield advice("join-width", link.name, what)


def _places(record: Record) -> Iterator[Finding]:
    device = record.device
    ends = [end for fifo in record.fifos for end in (fifo.producer, *fifo.consumers)]
    places = {end.tile for end in ends} | {worker.tile for worker in record.workers}
    for tile in sorted(places):
        if not (0 <= tile.column < device.columns and 0 <= tile.row < device.rows):
            yield Finding(
                "placement", str(tile), f"not on {device.name} of {device.columns} columns"
            )
    for end in ends:
        if (end.host and end.tile.kind != "shim") or (end.link and end.tile.kind != "memtile"):
            yield Finding(
                "placement", str(end.tile), "the host's fifos end in row 0, links in row 1"
            )
    for tile, count in Counter(worker.tile for worker in record.workers).items():
        if tile.kind != "core":
            yield Finding("placement", str(tile), "a worker on a tile without a core")
        if count > 1:
            yield Finding("placement", str(tile), f"{count} workers on one core")


def _held_all(record: Record, lowered: Lowered) -> set[int]:
    """Pools of which a body acquires the whole depth: mlir-aie gives those one object more."""
    pools = set()
    for worker in record.workers:
        for port, count in worker.sites.held_max:
            pool, _ = lowered.ports[port]
            if count == pool.depth > 1:
                pools.add(id(pool))
    return pools


def _rounded(nbytes: int) -> int:
    return -(-nbytes // L1_MULTIPLE_BYTES) * L1_MULTIPLE_BYTES


def _core_memory(record: Record, lowered: Lowered) -> Iterator[Finding]:
    more = _held_all(record, lowered)
    held: dict[Tile, dict[str, int]] = defaultdict(dict)
    for worker in record.workers:
        held[worker.tile]["stack"] = worker.stack_bytes or STACK_BYTES
        if worker.stack_bytes is None and worker.body is not None:
            what = f"no stack_size, so {STACK_BYTES} bytes; an overflow hangs the core"
            yield advice("stack-unstated", worker.name, what, "state what its kernels need")
    for pool in lowered.pools:
        if pool.tile.kind == "core":
            count = pool.depth + (id(pool) in more)
            held[pool.tile][pool.name] = count * _rounded(pool.type.nbytes)
            yield from _multiple(pool.name, pool.type.nbytes)
    for buffer in record.buffers:
        held[buffer.tile][buffer.name] = _rounded(buffer.type.nbytes)
        yield from _multiple(buffer.name, buffer.type.nbytes)
    for tile, parts in held.items():
        total = sum(parts.values())
        if total > CORE_DATA_BYTES:
            what = ", ".join(f"{name} {nbytes}" for name, nbytes in parts.items())
            yield Finding("l1-data", f"core {tile}", f"{total} of {CORE_DATA_BYTES} bytes: {what}")


def _multiple(name: str, nbytes: int) -> Iterator[Finding]:
    if nbytes % L1_MULTIPLE_BYTES:
        what = f"{nbytes} bytes; what lies behind it is misaligned for wide loads"
        yield advice("l1-multiple", name, what, f"pad it to a multiple of {L1_MULTIPLE_BYTES}")


def _memtile_memory(lowered: Lowered) -> Iterator[Finding]:
    held: Counter[Tile] = Counter()
    for pool in lowered.pools:
        if pool.tile.kind == "memtile":
            held[pool.tile] += pool.nbytes
    for tile, total in held.items():
        if total > MEMTILE_DATA_BYTES:
            yield Finding("l2-data", f"memtile {tile}", f"{total} of {MEMTILE_DATA_BYTES} bytes")


def program_bytes(sites: Sites) -> int:
    """An estimate of what a body compiles to, its kernels' own code not counted."""
    calls = sum(CALL_BYTES + ARGUMENT_BYTES * len(kernel.parameters) for kernel in sites.calls)
    return FRAME_BYTES + calls + LOCK_BYTES * sites.locks + LOOP_BYTES * sites.loops


def _program(record: Record) -> Iterator[Finding]:
    for worker in record.workers:
        estimate = program_bytes(worker.sites)
        if estimate > CORE_PROGRAM_BYTES:
            what = (
                f"about {estimate} of {CORE_PROGRAM_BYTES} bytes: {len(worker.sites.calls)} calls"
            )
            fix = "Python loops unroll: use range_"
            yield advice("program-estimate", worker.name, what, fix)
        yield from _barriers(worker)
    symbols = defaultdict(set)
    for worker in record.workers:
        for kernel in worker.sites.calls:
            if kernel.source is not None:
                symbols[kernel.source].add(kernel.symbol)
    for source, names in symbols.items():
        if len(names) > 1:
            what = f"{', '.join(sorted(names))} come from one source"
            yield advice("one-symbol", source, what, "each is compiled alone and defines them all")


def _barriers(worker: Worker) -> Iterator[Finding]:
    done = set(worker.sites.barriers)
    for name in sorted({name for name, _ in done}):
        if {(name, "wait"), (name, "release")} <= done:
            what = f"releases '{name}', which it waits on"
            fix = "the next dispatch would start with the old parameters"
            yield advice("barrier-released", worker.name, what, fix)


def _channels(used: tuple[Channel, ...]) -> Iterator[Finding]:
    counts = Counter((channel.tile, channel.into_memory) for channel in used)
    for (tile, into), count in counts.items():
        most = DMAS[tile.kind].channels
        if count > most:
            way = "S2MM" if into else "MM2S"
            names = [c.fifo for c in used if c.tile == tile and c.into_memory == into]
            what = f"{count} of {most} {way} channels: {', '.join(names)}"
            yield Finding(f"{tile.kind}-channels", f"{tile.kind} {tile}", what)


def _descriptors(used: tuple[Channel, ...], lowered: Lowered) -> Iterator[Finding]:
    """Each channel of a core or memory tile keeps one for each object it goes through."""
    links = {pool.name: pool.depth for pool in lowered.pools}
    held: Counter[tuple[Tile, int]] = Counter()
    for channel in used:
        tile = channel.tile
        if tile.kind == "shim":
            continue
        depth = links[channel.end.link] if channel.end.link else channel.end.depth
        # A memory tile's even channels share one half of its descriptors, the odd ones the other.
        held[tile, channel.number % 2 if tile.kind == "memtile" else 0] += depth
    for (tile, _), count in held.items():
        most = DMAS[tile.kind].descriptors // (2 if tile.kind == "memtile" else 1)
        if count > most:
            what = f"{count} of {most} buffer descriptors"
            yield Finding(f"{tile.kind}-descriptors", f"{tile.kind} {tile}", what, "lower depths")


def _locks(record: Record, lowered: Lowered) -> Iterator[Finding]:
    held: Counter[Tile] = Counter()
    for pool in lowered.pools:
        held[pool.tile] += _lock_pairs(pool) * 2
    for worker in record.workers:
        held[worker.tile] += len({name for name, _ in worker.sites.barriers})
    for tile, count in held.items():
        if count > DMAS[tile.kind].locks:
            yield Finding("locks", f"{tile.kind} {tile}", f"{count} of {DMAS[tile.kind].locks}")


def _lock_pairs(pool: Pool) -> int:
    return max(len(pool.writers), len(pool.readers))


def _host(record: Record) -> Iterator[Finding]:
    if len(record.arguments) > ARGUMENTS_ADVISED:
        what = f"{len(record.arguments)}; the firmware maps the first {ARGUMENTS_ADVISED}"
        yield advice("arguments", "host buffers", what, "use offsets into fewer buffers")
    for argument in record.arguments:
        if argument.nbytes % 4:
            yield Finding("granularity", argument.name, f"{argument.nbytes} bytes")

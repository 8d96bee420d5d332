"""What is kept of one domain, for people: the tree of its prompts, and what it takes.

view = overview(cache, domain)              # on the engine's thread, a few ms
view = with_disk(view, cache.disk.store)    # on any
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from flm.core.prompt import BoundaryKind, Prompt
from flm.prefix.cache import PrefixCache
from flm.prefix.disk.store import DiskStore
from flm.prefix.disk.stored import OnDisk
from flm.prefix.outgrown import outgrown
from flm.prefix.trie import TOKEN_BYTES, Node

STRETCHES_MAX = 1000  # of a domain that are shown, the youngest first
HOST, DISK = "host", "disk"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens [start, end) of prompts. At `end` a snapshot is kept, or the ways to others part.

    `above` is the index of the stretch that leads here, None from the start. Without a snapshot
    there is no `kind`, and no `tiers` that have it. Bytes are those of the first tier: `bytes_own`
    would go with the snapshot, `bytes_shared` is what it has in common with others; on disk both
    are estimates. Seconds count from when it was kept and when it was last resumed or renewed;
    `awaited_s` is how much longer a tool's result is awaited that would go on from it.
    """

    above: int | None
    start: int
    end: int
    tokens: bytes  # packed; empty where only the disk knows them
    kind: BoundaryKind | None = None
    tiers: tuple[str, ...] = ()
    slot: int | None = None
    bytes_own: int = 0
    bytes_shared: int = 0
    age_s: float | None = None
    idle_s: float | None = None
    awaited_s: float | None = None
    hits: int = 0
    leases: int = 0  # requests under way that rest on it


@dataclass(frozen=True, slots=True)
class Totals:
    """Bytes and slots of all domains, but for those that are the domain's own."""

    bytes_kept: int
    bytes_coming: int
    bytes_max: int
    bytes_own: int
    slots: int
    slots_max: int | None
    slots_own: int
    ghosts_bytes: int
    ghosts_bytes_max: int
    disk_bytes: int = 0
    disk_bytes_max: int = 0
    disk_slots_own: int = 0


@dataclass(frozen=True, slots=True)
class Overview:
    """`stretches` follow those that lead to them; `truncated`: there are more."""

    domain: str
    row_bytes: int
    stretches: tuple[Stretch, ...]
    totals: Totals
    truncated: bool = False


def overview(cache: PrefixCache, domain: str) -> Overview:
    """Of what is in memory."""
    root = cache.trie.roots.get(domain)
    nodes = [node for node in root.below() if node is not root] if root else []
    shown = nodes[:STRETCHES_MAX]
    leases = Counter(node for lease in cache.leases for node in lease.node.path())
    users = Counter(way for node in nodes if node.slot for way in node.path())
    index = {node: number for number, node in enumerate(shown)}
    rows_own: dict[Node, int] = {}  # rows that lead there and to nothing else
    stretches = []
    for node in shown:
        assert node.parent
        rows = node.end - node.start if users[node] == 1 else 0
        rows_own[node] = rows_own.get(node.parent, 0) + rows
        above = index.get(node.parent)
        stretches.append(_stretch(cache, node, above, rows_own[node], leases[node]))
    own_bytes = sum(node.end - node.start for node in nodes) * cache.row_bytes
    own_bytes += sum(node.slot.bytes for node in nodes if node.slot)
    totals = Totals(
        bytes_kept=cache.bytes_kept,
        bytes_coming=cache.bytes_coming,
        bytes_max=cache.bytes_max,
        bytes_own=own_bytes,
        slots=cache.slot_count,
        slots_max=cache.slots_max,
        slots_own=sum(node.slot is not None for node in nodes),
        ghosts_bytes=cache.ghosts.bytes_held,
        ghosts_bytes_max=cache.ghosts.bytes_max,
    )
    truncated = len(shown) < len(nodes)
    return Overview(domain, cache.row_bytes, tuple(stretches), totals, truncated)


def with_disk(view: Overview, store: DiskStore) -> Overview:
    """Say of each snapshot whether the disk has it too, and add those that only the disk has."""
    entries = sorted(
        (each for each in store.overview() if each.domain == view.domain),
        key=lambda each: (each.offset, -each.used_at),
    )
    index: dict[int, int] = {}  # entry number -> place among the stretches
    stretches = list(view.stretches)
    for place, stretch in enumerate(stretches):
        number = store.number_of(view.domain, _way(stretches, place)) if stretch.slot else None
        if number is not None:
            index[number] = place
            stretches[place] = replace(stretch, tiers=(HOST, DISK))
    alone = [each for each in entries if each.number not in index]
    room = STRETCHES_MAX - len(stretches)
    stretches += _on_disk_alone(alone[:room], entries, index, len(stretches), view.row_bytes, store)
    totals = replace(
        view.totals,
        disk_bytes=store.bytes_kept,
        disk_bytes_max=store.bytes_max,
        disk_slots_own=len(entries),
    )
    truncated = view.truncated or len(alone) > room
    return replace(view, stretches=tuple(stretches), totals=totals, truncated=truncated)


def kept_tiers(cache: PrefixCache, prompt: Prompt) -> tuple[str | None, ...]:
    """For each of its boundaries, where a prompt that parts there would start from.

    On the engine's thread. Nothing is changed by asking.
    """
    host = _host_offsets(cache, prompt)
    return tuple(_tier(cache, prompt, each.offset, host) for each in prompt.boundaries)


def _tier(cache: PrefixCache, prompt: Prompt, offset: int, host: set[int]) -> str | None:
    if offset in host:
        return HOST
    if cache.disk is None:
        return None
    # A few tokens more, for as many are always left to compute.
    tokens = prompt.packed[: (offset + cache.read_min) * TOKEN_BYTES]
    stored = cache.disk.store.find(prompt.domain, tokens)
    return DISK if stored and stored.offset >= offset else None


def _host_offsets(cache: PrefixCache, prompt: Prompt) -> set[int]:
    """Of the prompt's boundaries: those in memory."""
    if prompt.domain not in cache.trie.roots:
        return set()
    match = cache.trie.find(prompt.domain, prompt.packed)
    deepest = match.child or match.node
    kept = set()
    for node in deepest.path():
        stop = min(node.end, match.length)
        if cache.state_bytes:
            kept |= {stop} if node.slot and node.end == stop else set()
        elif node.slot_through():
            kept |= set(range(node.start + 1, stop + 1))
    return kept & {each.offset for each in prompt.boundaries}


def _stretch(cache: PrefixCache, node: Node, above: int | None, own: int, leases: int) -> Stretch:
    slot, now = node.slot, cache.clock()
    bare = Stretch(above, node.start, node.end, node.tokens, leases=leases)
    if slot is None:
        return bare
    return replace(
        bare,
        kind=slot.kind,
        tiers=(HOST,),
        slot=slot.number,
        bytes_own=slot.bytes + own * cache.row_bytes,
        bytes_shared=(node.end - own) * cache.row_bytes,
        age_s=now - slot.made_s,
        idle_s=now - slot.used_s,
        awaited_s=None if outgrown(node) else cache.awaited.left_s(slot.number, now),
        hits=slot.hits,
    )


def _way(stretches: Sequence[Stretch], place: int | None) -> bytes:
    """The tokens from the start to the end of a stretch in memory, packed."""
    edges = []
    while place is not None:
        edges.append(stretches[place].tokens)
        place = stretches[place].above
    return b"".join(reversed(edges))


def _on_disk_alone(
    shown: Sequence[OnDisk],
    entries: Sequence[OnDisk],
    index: dict[int, int],
    first: int,
    row_bytes: int,
    store: DiskStore,
) -> Iterator[Stretch]:
    """`index` has the places of entries that are shown already, and gets those of these."""
    offsets = {each.number: each.offset for each in entries}
    shared = {each.above for each in entries}
    now = store.clock()
    for place, each in enumerate(shown, first):
        index[each.number] = place
        above = each.above if each.above in offsets else None
        start = offsets[above] if above is not None else 0
        own = 0 if each.number in shared else each.offset - start
        yield Stretch(
            above=index.get(above) if above is not None else None,
            start=start,
            end=each.offset,
            tokens=b"",
            kind=each.kind,
            tiers=(DISK,),
            bytes_own=each.own_bytes + own * row_bytes,
            bytes_shared=(each.offset - own) * row_bytes,
            idle_s=max(0.0, now - each.used_at),
        )


def beginning(stretch: Stretch, count: int) -> tuple[int, ...]:
    """Its first tokens."""
    return tuple(islice(memoryview(stretch.tokens).cast("i"), count))

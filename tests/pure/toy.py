"""A model in miniature that holds what it has read, and a server for one request at a time.

Rows are the tokens themselves, state is a hash chain over them, and logits are a hash of both: so a
wrong byte restored, or one from another conversation, shows in the very next answer.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytest

from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.devices.device import Array
from flm.memory.snapshot import Snapshot
from flm.prefix.cache import PrefixCache
from flm.prefix.eviction import Policy, flm
from flm.prefix.lease import Lease, Manners

HEAD, TURN, OPENER, END = (
    BoundaryKind.HEAD,
    BoundaryKind.TURN,
    BoundaryKind.OPENER,
    BoundaryKind.END,
)
ROW_BYTES, STATE_BYTES, LOGITS_BYTES = 4 + 12, 20, 16

both = pytest.mark.parametrize("hybrid", [True, False], ids=["hybrid", "stateless"])


class Toy:
    """One lane of it."""

    def __init__(self, *, hybrid: bool) -> None:
        self.hybrid = hybrid
        self.keys = np.zeros((1, 0, 1), np.int32)
        self.values = np.zeros((2, 0, 3), np.int16)
        self.chain = b"seed"

    @property
    def length(self) -> int:
        return self.keys.shape[1]

    def read(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            values = np.full((2, 1, 3), (token * 31 + self.length) % 9973, np.int16)
            self.keys = np.append(self.keys, np.full((1, 1, 1), token, np.int32), axis=1)
            self.values = np.append(self.values, values, axis=1)
            self.chain = hashlib.sha1(self.chain + token.to_bytes(4)).digest()

    def logits(self) -> Array:
        seen = self.keys.tobytes() + self.values.tobytes() + (self.chain if self.hybrid else b"")
        return np.frombuffer(hashlib.md5(seen).digest(), np.float32)

    def save(self, start: int, end: int) -> Snapshot:
        assert end <= self.length
        rows: dict[str, Array] = {
            "keys": self.keys[:, start:end].copy(),
            "values": self.values[:, start:end].copy(),
        }
        state = {"chain": np.frombuffer(self.chain, np.uint8).copy()} if self.hybrid else None
        assert not self.hybrid or end == self.length, "state is only what it is now"
        return Snapshot(start, end, rows, state or {})

    def restore(self, snapshots: Sequence[Snapshot]) -> None:
        assert self.length == 0
        for snapshot in snapshots:
            assert snapshot.start == self.length
            self.keys = np.concatenate([self.keys, snapshot.rows["keys"]], axis=1)
            self.values = np.concatenate([self.values, snapshot.rows["values"]], axis=1)
        if snapshots and self.hybrid:
            state = snapshots[-1].state
            assert state, "restored to where no state was kept"
            self.chain = state["chain"].tobytes()


def cold(tokens: Sequence[int], *, hybrid: bool) -> bytes:
    toy = Toy(hybrid=hybrid)
    toy.read(tokens)
    return toy.logits().tobytes()


@dataclass
class Log:
    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def having(self, text: str) -> list[str]:
        return [line for line in self.lines + self.warnings if text in line]


def toy_cache(
    *,
    hybrid: bool = True,
    bytes_max: int = 1_000_000,
    slots_max: int | None = None,
    gain_min: int = 1,
    log: Log | None = None,
    policy: Policy = flm,
    ghosts_max: int = 0,
) -> PrefixCache:
    log = log or Log()
    return PrefixCache(
        bytes_max=bytes_max,
        slots_max=slots_max,
        gain_min=gain_min,
        row_bytes=ROW_BYTES,
        state_bytes=STATE_BYTES if hybrid else 0,
        log=log.lines.append,
        warn=log.warnings.append,
        policy=policy,
        ghosts_max=ghosts_max,
        clock=count().__next__,
    )


def prompt(tokens: Sequence[int], **offsets: int) -> Prompt:
    """With boundaries by name: `prompt(tokens, head=3, end=9)`."""
    kinds = {offset: BoundaryKind(name) for name, offset in offsets.items()}
    return Prompt(tuple(tokens), tuple(Boundary(at, kinds[at]) for at in sorted(kinds)))


def begin(
    cache: PrefixCache, request: Prompt, *, manners: Manners = Manners.USUAL
) -> tuple[Lease, Toy]:
    """What the engine does on admission."""
    lease = cache.lease(request, manners=manners)
    toy = Toy(hybrid=cache.state_bytes > 0)
    toy.restore(lease.snapshots)
    assert toy.length == lease.offset
    return lease, toy


def serve(cache: PrefixCache, tokens: Sequence[int], *, forks: bool = False, **offsets: int) -> int:
    """A whole request, kept at its boundaries (just the end, if none are named), and at forks.

    Gives the number of tokens that were not read. Warm equals cold, or it fails.
    """
    request = prompt(tokens, **(offsets or {"end": len(tokens)}))
    lease, toy = begin(cache, request)
    answer = lease.logits
    for boundary in lease.boundaries if forks else request.boundaries:
        if lease.wants(boundary):
            toy.read(tokens[toy.length : boundary.offset])
            logits = toy.logits() if boundary.offset == len(tokens) else None
            lease.keep(boundary, toy.save, logits)
            cache.check()
    if answer is None:
        assert lease.offset < len(tokens)
        toy.read(tokens[toy.length :])
        answer = toy.logits()
    assert answer.tobytes() == cold(tokens, hybrid=cache.state_bytes > 0)
    lease.close()
    cache.check()
    return lease.offset


def text(seed: int, length: int) -> list[int]:
    """Tokens that part from any other seed's at once, as far as tokens ever do."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, 50_000, length)]


def snapshot_bytes(tokens: int, *, hybrid: bool = True) -> int:
    return tokens * ROW_BYTES + (STATE_BYTES if hybrid else 0) + LOGITS_BYTES


def keep_without_logits(cache: PrefixCache, tokens: Sequence[int]) -> None:
    request = prompt(tokens, end=len(tokens))
    lease, toy = begin(cache, request)
    toy.read(tokens[toy.length :])
    lease.keep(request.boundaries[0], toy.save)
    lease.close()
    cache.check()

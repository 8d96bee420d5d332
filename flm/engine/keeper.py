"""Leases for requests, and what is kept of prompts while they are read, for them and for others."""

from collections.abc import Iterator, Mapping
from functools import partial

from flm.core.request import Priority, Request
from flm.devices.device import Array
from flm.engine.active import Active
from flm.engine.following import in_order, shared_length
from flm.engine.logits import likeliest
from flm.prefix.cache import PrefixCache
from flm.prefix.lease import Lease, Manners
from flm.runner.runner import Runner


class Keeper:
    """`actives` are the engine's, by request id."""

    def __init__(self, cache: PrefixCache, runner: Runner, actives: Mapping[str, Active]) -> None:
        self._cache = cache
        self._runner = runner
        self._actives = actives

    def lease(self, request: Request) -> Lease:
        manners = Manners.MODEST if request.priority is Priority.IDLE else Manners.USUAL
        return self._cache.lease(
            request.prompt,
            manners=manners if request.reuse else Manners.BLIND,
            agent=request.priority is Priority.AGENT,
        )

    def lease_anew(self, active: Active) -> Lease:
        """In place of the one it has, which is closed; others may wait for the forks of that."""
        before, lease = active.lease, self.lease(active.sequence.request)
        lease.plan_forks_of(before)
        before.close()
        return lease

    def keep(self, active: Active, logits: Array | None = None) -> Iterator[Active]:
        """Keep what was read, at boundaries that the cache wants; `logits` are of the last token,
        and numbers: else DeviceFailed is raised, for kept they would fail every retry.

        Gives those who have a lease on it now, and start anew from there.
        """
        sequence, lease = active.sequence, active.lease
        lease.note_read(sequence.computed)
        if logits is not None:
            likeliest(logits)
        for boundary in lease.boundaries[active.kept :]:
            if boundary.offset > sequence.computed:
                break
            active.kept += 1
            if lease.wants(boundary):
                whole = boundary.offset == sequence.prompt_length
                save = partial(self._runner.save, active.lane)
                if lease.keep(boundary, save, logits if whole else None):
                    yield from self._share(active, boundary.offset)

    def keep_for(self, newcomer: Request) -> Iterator[Active]:
        """Without state rows can be cut anywhere: what is being read is there for it already."""
        if self._cache.state_bytes or not newcomer.reuse:
            return
        for active in in_order(self._actives.values()):
            shared = shared_length(newcomer.prompt, active.sequence.request.prompt)
            offset = min(shared, active.sequence.computed)
            if active.restored and active.lease.plan_fork(offset):
                yield from self.keep(active)

    def _share(self, reader: Active, offset: int) -> Iterator[Active]:
        """What `reader` has just kept saves the untouched from reading the same."""
        for active in list(self._actives.values()):
            own = active.sequence.request
            behind = own.reuse and not active.restored and active.sequence.computed < offset
            if behind and shared_length(own.prompt, reader.sequence.request.prompt) >= offset:
                active.lease = self.lease_anew(active)
                yield active

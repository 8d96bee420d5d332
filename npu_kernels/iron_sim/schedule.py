"""The sequence, as the shim sees it: queues, descriptors, reads of what is not yet written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from npu_kernels.iron_sim.finding import Finding, advice
from npu_kernels.iron_sim.limits import (
    DMAS,
    QUEUE_DEPTH,
    QUEUE_DEPTH_ADVISED,
    TRANSFER_BYTES_ADVISED,
)
from npu_kernels.iron_sim.record import Await, Free, Push, Record, Tile, Transfer
from npu_kernels.iron_sim.simulate import transfer_walk
from npu_kernels.iron_sim.walk import Walk


def schedule(record: Record) -> Iterator[Finding]:
    """Steps through the sequence with an array that does as little as it may."""
    shims = {fifo.name: _shim(record, fifo.name) for fifo in record.fifos}
    awaits = 0  # so far
    started: dict[str, list[tuple[Transfer, int]]] = defaultdict(list)  # not known to be done
    live: dict[Tile, set[int]] = defaultdict(set)  # descriptors, by shim
    writing: dict[int, tuple[Transfer, Walk]] = {}  # drains nobody has awaited, nor one behind them
    for step in record.sequence:
        if isinstance(step, Push):
            transfer = step.transfer
            walk = transfer_walk(transfer, record.arguments[transfer.argument])
            queue = started[transfer.fifo]
            queue.append((transfer, awaits))
            live[shims[transfer.fifo]].add(transfer.number)
            yield from _queue(transfer, len(queue), sum(then == awaits for _, then in queue))
            yield from _live(transfer, shims[transfer.fifo], len(live[shims[transfer.fifo]]))
            yield from _short(transfer, walk)
            if transfer.fills:
                yield from _hazards(transfer, walk, writing, record)
            else:
                writing[transfer.number] = (transfer, walk)
        elif isinstance(step, Await | Free):
            transfer = step.transfer
            live[shims[transfer.fifo]].discard(transfer.number)
            queue = started[transfer.fifo]
            done = [started for started, _ in queue if started.number <= transfer.number]
            queue[:] = [entry for entry in queue if entry[0] not in done]
            if isinstance(step, Await):
                awaits += 1
                yield from _order(transfer, done)
                for earlier in done:
                    writing.pop(earlier.number, None)
    for transfer, _ in writing.values():
        what = "the sequence may end before it does"
        yield Finding("drain-awaited", _name(transfer), what, "drain(..., wait=True)")


def _shim(record: Record, fifo: str) -> Tile:
    known = record.fifo(fifo)
    return next((end.tile for end in (known.producer, *known.consumers) if end.host), Tile(0, 0))


def _name(transfer: Transfer) -> str:
    return f"{'fill' if transfer.fills else 'drain'} {transfer.number} of '{transfer.fifo}'"


def _queue(transfer: Transfer, count: int, sure: int) -> Iterator[Finding]:
    """sure: how many of them were started since anything was awaited at all."""
    fix = "await the oldest transfer first"
    if sure > QUEUE_DEPTH:
        what = f"start {sure} with none awaited; the shim drops it"
        yield Finding("queue-depth", _name(transfer), what, fix)
    elif count > QUEUE_DEPTH_ADVISED:
        yield advice("queue-depth", _name(transfer), f"start {count} with none awaited", fix)


def _order(awaited: Transfer, done: list[Transfer]) -> Iterator[Finding]:
    """A wait takes the channel's next token, whichever transfer it is of."""
    for earlier in done:
        if earlier.awaited and earlier is not awaited:
            what = f"is awaited before {_name(earlier)}, whose token comes first"
            yield Finding("await-order", _name(awaited), what, "await in the order of starts")


def _live(transfer: Transfer, shim: Tile, count: int) -> Iterator[Finding]:
    most = DMAS["shim"].descriptors
    if count > most:
        what = f"{count} of {most} buffer descriptors of shim {shim}"
        yield Finding("shim-descriptors", _name(transfer), what, "pin tiles to more columns")


def _short(transfer: Transfer, walk: Walk) -> Iterator[Finding]:
    if walk.count * 4 < TRANSFER_BYTES_ADVISED:
        what = f"{walk.count * 4} bytes; one of 128 has arrived as zeros"
        yield advice("transfer-short", _name(transfer), what, f"{TRANSFER_BYTES_ADVISED} or more")


def _hazards(
    fill: Transfer, walk: Walk, writing: dict[int, tuple[Transfer, Walk]], record: Record
) -> Iterator[Finding]:
    for drain, target in writing.values():
        if drain.argument == fill.argument and _meet(walk, target):
            name = record.arguments[fill.argument].name
            what = f"reads what {_name(drain)} may not have written yet in {name}"
            yield Finding("dram-hazard", _name(fill), what, "await the drain first")


def _meet(one: Walk, other: Walk) -> bool:
    if one.last < other.offset or other.last < one.offset:
        return False
    if one.linear and other.linear:
        return True
    start, stop = min(one.offset, other.offset), max(one.last, other.last) + 1
    touched = np.zeros(stop - start, bool)
    touched[_places(one, start)] = True
    return bool(touched[_places(other, start)].any())


def _places(walk: Walk, start: int) -> slice | np.ndarray[Any, np.dtype[np.int64]]:
    return Walk(walk.offset - start, walk.sizes, walk.strides).at(0, walk.count)

"""What is wrong with a stream, found without running it. Each rule has a name.

What is in flight is known from the awaits: a token ends its task and those before it in the same
queue. A fill without a token is taken to be over with the drain it may be for: once that is
awaited, if the fill was started before the channel's next drain; or once nothing with a token is
left. IRON assumes as much when it frees descriptors. What this misses shows when a stream is run.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from npu_kernels.txn.faults import StreamFault
from npu_kernels.txn.geometry import Geometry
from npu_kernels.txn.operations import Operation
from npu_kernels.txn.shim import (
    QUEUE_DEPTH,
    Awaited,
    Channel,
    Described,
    Event,
    Shims,
    Started,
    Task,
    Transfer,
)
from npu_kernels.txn.words import Words, header_of, parse

OUTSTANDING_MAX = 3
TRANSFER_BYTES_MIN = 256  # one of 128 has arrived as zeros
ARGUMENTS_MAX = 5
APERTURE = 0x80000000  # of DDR; the firmware adds it for the first five arguments only


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    where: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.what}" + (f" ({self.fix})" if self.fix else "")


def check(
    operations: Iterable[Operation],
    device: Geometry,
    arguments: Sequence[int],
    allow: Collection[str] = (),
) -> None:
    """`arguments`: the bytes of each buffer. Raises the first finding whose rule is not allowed."""
    for finding in findings(operations, device, arguments):
        if finding.rule not in allow:
            raise StreamFault(finding.rule, finding.where, finding.what, finding.fix)


def check_words(
    words: Words, device: Geometry, arguments: Sequence[int], allow: Collection[str] = ()
) -> None:
    header = header_of(words)
    if header.generation != device.generation or header.columns > device.columns:
        found = f"generation {header.generation}, {header.columns} columns"
        raise StreamFault("device", "header", f"{found}; this is {device.name}")
    check(parse(words), device, arguments, allow)


def findings(
    operations: Iterable[Operation], device: Geometry, arguments: Sequence[int]
) -> tuple[Finding, ...]:
    return tuple(_Check(device, arguments).run(operations))


def buffer_offset(patch_argument: int, offset: int) -> int:
    """The bytes into its buffer that a patch means."""
    return offset if patch_argument < ARGUMENTS_MAX else offset & ~APERTURE


class _Check:
    def __init__(self, device: Geometry, arguments: Sequence[int]) -> None:
        self._shims = Shims(device)
        self._arguments = arguments
        self._flying: dict[Channel, deque[tuple[int, Task]]] = defaultdict(deque)
        self._started = 0

    def run(self, operations: Iterable[Operation]) -> Iterator[Finding]:
        if len(self._arguments) > ARGUMENTS_MAX:
            what = f"{len(self._arguments)} buffers, {ARGUMENTS_MAX} at most"
            yield Finding("argument-count", "arguments", what, "use offsets into fewer buffers")
        for number, operation in enumerate(operations):
            where = f"operation {number}"
            try:
                for event in self._shims.apply(operation, where):
                    yield from self._event(event, where)
            except StreamFault as fault:
                yield Finding(fault.rule, fault.where, fault.what, fault.fix)
        yield from self._end()

    def _event(self, event: Event, where: str) -> Iterator[Finding]:
        if isinstance(event, Described):
            yield from self._described(event, where)
        elif isinstance(event, Started):
            yield from self._queued(event.task, where)
            for transfer in event.task.transfers:
                yield from self._addressed(transfer, event.task, where)
                yield from _described_well(transfer, event.task, where)
        elif isinstance(event, Awaited):
            yield from self._awaited(event.channel, where)

    def _described(self, event: Described, where: str) -> Iterator[Finding]:
        for tasks in self._flying.values():
            for _, task in tasks:
                if task.uses(event.column, event.number):
                    what = f"descriptor {event.number} changes while {task.channel} may use it"
                    yield Finding("descriptor-reuse", where, what, "await it first")

    def _queued(self, task: Task, where: str) -> Iterator[Finding]:
        queue = self._flying[task.channel]
        fix = "await the oldest first"
        if len(queue) >= QUEUE_DEPTH:
            what = f"start {len(queue) + 1} on {task.channel}, none awaited: the shim drops it"
            yield Finding("queue-depth", where, what, fix)
        elif len(queue) >= OUTSTANDING_MAX:
            what = f"{len(queue) + 1} outstanding on {task.channel}, {OUTSTANDING_MAX} at most"
            yield Finding("outstanding", where, what, fix)
        queue.append((self._started, task))
        self._started += 1

    def _addressed(self, transfer: Transfer, task: Task, where: str) -> Iterator[Finding]:
        patch = transfer.patch
        if patch.argument >= len(self._arguments):
            what = f"argument {patch.argument} of {len(self._arguments)}"
            yield Finding("argument", where, what)
            return
        folded = bool(patch.offset & APERTURE)
        if folded != (patch.argument >= ARGUMENTS_MAX):
            what = f"argument {patch.argument}, offset 0x{patch.offset:08x}"
            fix = "the aperture's bit belongs to arguments 5 and up, and only to them"
            yield Finding("aperture", where, what, fix)
        offset = buffer_offset(patch.argument, patch.offset)
        if offset % 4:
            yield Finding("granularity", where, f"offset {offset} in argument {patch.argument}")
        size = self._arguments[patch.argument]
        most = max(map(transfer.descriptor.iteration_offset, _positions(transfer, task)))
        end = offset + 4 * (transfer.descriptor.last + most + 1)
        if end > size:
            what = f"up to byte {end} of argument {patch.argument}, which has {size}"
            yield Finding("bounds", where, what)

    def _awaited(self, channel: Channel, where: str) -> Iterator[Finding]:
        queue = self._flying[channel]
        if not any(task.token for _, task in queue):
            what = f"nothing on {channel} will send a token: the dispatch hangs"
            yield Finding("await-nothing", where, what)
            return
        while not queue.popleft()[1].token:
            pass
        if not any(task.token for tasks in self._flying.values() for _, task in tasks):
            self._implied(self._started)
        elif not channel.fills:
            self._implied(queue[0][0] if queue else self._started)

    def _implied(self, before: int) -> None:
        """Fills that were started before that are over."""
        for channel, queue in self._flying.items():
            while channel.fills and queue and not queue[0][1].token and queue[0][0] < before:
                queue.popleft()

    def _end(self) -> Iterator[Finding]:
        for channel, queue in sorted(self._flying.items()):
            tokens = sum(task.token for _, task in queue)
            if tokens:
                what = f"{tokens} tokens of {channel} meet the next dispatch"
                yield Finding("token-left", "end", what, "await each token")
            elif queue and not channel.fills:
                what = f"{len(queue)} drains on {channel} may not be over"
                yield Finding("drain-unawaited", "end", what, "await the last drain of a channel")


def _positions(transfer: Transfer, task: Task) -> Iterable[int]:
    return range(min(task.repeats, transfer.descriptor.iteration.size))


def _described_well(transfer: Transfer, task: Task, where: str) -> Iterator[Finding]:
    descriptor = transfer.descriptor
    name = f"descriptor {transfer.number}"
    if not descriptor.length:
        yield Finding("zero-length", where, f"{name} moves nothing, which a DMA cannot")
        return
    nbytes = descriptor.length * 4 * task.repeats
    if nbytes < TRANSFER_BYTES_MIN:
        what = f"{name} moves {nbytes} bytes, {TRANSFER_BYTES_MIN} at least"
        yield Finding("short-transfer", where, what)
    if descriptor.d1.size and not descriptor.d0.size:
        yield Finding("wrap", where, f"{name} wraps its second dimension, not its first")
    elif descriptor.length % descriptor.run_words:
        what = f"{name}: {descriptor.length} words in runs of {descriptor.run_words}"
        yield Finding("wrap", where, what)
    if task.repeats % descriptor.iteration.size:
        what = f"{name}: {task.repeats} repeats of {descriptor.iteration.size} positions"
        yield Finding("iteration", where, what, "the next start would begin in the middle")

"""The shims' registers, and what an operation does to them: descriptors, queues, tasks.

Nothing moves here. The checker looks at what comes out, fakexrt moves bytes by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from npu_kernels.txn.descriptors import DESCRIPTOR_WORDS, DESCRIPTORS, Descriptor
from npu_kernels.txn.faults import StreamFault
from npu_kernels.txn.geometry import Geometry, Place
from npu_kernels.txn.operations import (
    Await,
    BlockWrite,
    MaskWrite,
    Operation,
    Patch,
    UpdateRegister,
    Write,
)

DESCRIPTOR_BASE, DESCRIPTOR_BYTES = 0x1D000, 0x20
CONTROL = {0x1D200: (False, 0), 0x1D208: (False, 1), 0x1D210: (True, 0), 0x1D218: (True, 1)}
QUEUE = {offset + 4: channel for offset, channel in CONTROL.items()}
QUEUE_DEPTH = 4
CHANNELS = 2
TOKEN_BIT = 1 << 31


@dataclass(frozen=True, slots=True, order=True)
class Channel:
    column: int
    fills: bool  # MM2S
    number: int

    def __str__(self) -> str:
        return f"{'MM2S' if self.fills else 'S2MM'}{self.number} of column {self.column}"


@dataclass(frozen=True, slots=True)
class Transfer:
    """One descriptor of a task, with the address it was patched with."""

    number: int
    descriptor: Descriptor
    patch: Patch


@dataclass(frozen=True, slots=True)
class Task:
    channel: Channel
    transfers: tuple[Transfer, ...]  # in the order of the chain
    repeats: int
    token: bool

    def uses(self, column: int, number: int) -> bool:
        return self.channel.column == column and any(t.number == number for t in self.transfers)

    def __str__(self) -> str:
        numbers = ", ".join(str(transfer.number) for transfer in self.transfers)
        return f"descriptor {numbers} on {self.channel}"


@dataclass(frozen=True, slots=True)
class Described:
    """A descriptor was written or patched."""

    column: int
    number: int


@dataclass(frozen=True, slots=True)
class Started:
    task: Task


@dataclass(frozen=True, slots=True)
class Awaited:
    channel: Channel


@dataclass(frozen=True, slots=True)
class Poked:
    """Anything else was written: memory of a core, a lock, a switch."""

    place: Place
    value: int


Event = Described | Started | Awaited | Poked


class Shims:
    def __init__(self, device: Geometry) -> None:
        self._device = device
        self._registers: dict[int, int] = {}
        self._patches: dict[tuple[int, int], Patch] = {}

    def apply(self, operation: Operation, where: str) -> Iterator[Event]:
        match operation:
            case Write(register, value):
                yield from self._write(register, value, where)
            case BlockWrite(register, data):
                before: Event | None = None
                for index, value in enumerate(data):
                    for event in self._write(register + 4 * index, value, where):
                        if event != before or not isinstance(event, Described):
                            yield event
                        before = event
            case MaskWrite(register, value, mask):
                whole = self._registers.get(register, 0) & ~mask | value & mask
                yield from self._write(register, whole, where)
            case Patch():
                yield self._patch(operation, where)
            case Await():
                yield from self._await(operation, where)
            case UpdateRegister(register):
                self._place(register, where)
            case _:
                pass

    def _place(self, register: int, where: str) -> Place:
        place = Place.of(register)
        if not self._device.holds(place.column, place.row):
            tiles = f"{self._device.columns} columns of {self._device.rows}"
            raise StreamFault("tile", where, f"{place}; {self._device.name} has {tiles}")
        if register % 4:
            raise StreamFault("granularity", where, f"register 0x{register:08x}")
        return place

    def _write(self, register: int, value: int, where: str) -> Iterator[Event]:
        place = self._place(register, where)
        self._registers[register] = value
        if place.kind != "shim":
            yield Poked(place, value)
        elif (number := descriptor_number(place.offset)) is not None:
            self._patches.pop((place.column, number), None)
            yield Described(place.column, number)
        elif place.offset in QUEUE:
            yield Started(self._task(Channel(place.column, *QUEUE[place.offset]), value, where))
        elif place.offset not in CONTROL:
            yield Poked(place, value)

    def _patch(self, patch: Patch, where: str) -> Described:
        place = self._place(patch.register, where)
        number = descriptor_number(place.offset)
        if place.kind != "shim" or number is None or place.offset % DESCRIPTOR_BYTES != 4:
            what = f"{place} is no shim descriptor's address word"
            raise StreamFault("patch", where, what)
        self._patches[place.column, number] = patch
        return Described(place.column, number)

    def _await(self, tct: Await, where: str) -> Iterator[Awaited]:
        if not tct.columns or tct.rows != 1 or tct.row or tct.channel >= CHANNELS:
            raise StreamFault("await", where, f"{tct}: tokens come from the shims' channels")
        for column in range(tct.column, tct.column + tct.columns):
            if column >= self._device.columns:
                raise StreamFault("tile", where, f"column {column} of {self._device.columns}")
            yield Awaited(Channel(column, tct.fills, tct.channel))

    def _task(self, channel: Channel, word: int, where: str) -> Task:
        if word & ~(TOKEN_BIT | 0xFF000F):
            raise StreamFault("queue", where, f"0x{word:08x} has bits without a meaning")
        transfers: list[Transfer] = []
        number: int | None = word & 0xF
        while number is not None:
            if any(transfer.number == number for transfer in transfers):
                raise StreamFault("chain", where, f"descriptor {number} follows itself, for ever")
            transfers.append(self._transfer(channel.column, number, where))
            number = transfers[-1].descriptor.following
        return Task(channel, tuple(transfers), (word >> 16 & 0xFF) + 1, bool(word & TOKEN_BIT))

    def _transfer(self, column: int, number: int, where: str) -> Transfer:
        base = Place(column, 0, DESCRIPTOR_BASE + DESCRIPTOR_BYTES * number).address
        words = [self._registers.get(base + 4 * index, 0) for index in range(DESCRIPTOR_WORDS)]
        descriptor = Descriptor.of(words)
        if not descriptor.valid:
            what = f"descriptor {number} of column {column} was not written, or is not valid"
            raise StreamFault("descriptor-invalid", where, what)
        patch = self._patches.get((column, number))
        if patch is None:
            what = f"descriptor {number} of column {column} has no buffer's address"
            fix = "patch it after it is written"
            raise StreamFault("unpatched", where, what, fix)
        return Transfer(number, descriptor, patch)


def descriptor_number(offset: int) -> int | None:
    number = (offset - DESCRIPTOR_BASE) // DESCRIPTOR_BYTES
    return number if 0 <= number < DESCRIPTORS else None

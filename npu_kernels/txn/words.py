"""Words to operations and back, bit for bit.

A stream is a header of four words, then operations; an operation's opcode is the low byte of its
first word. Words that the format leaves unused must be 0: what else would be lost on the way back.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from npu_kernels.txn.faults import StreamFault
from npu_kernels.txn.geometry import NPU2, Geometry
from npu_kernels.txn.operations import (
    Await,
    BlockWrite,
    CreateScratchpad,
    Custom,
    LoadPdi,
    MaskPoll,
    MaskWrite,
    Noop,
    Operation,
    Patch,
    Preempt,
    UpdateRegister,
    Write,
)

Words = np.ndarray[Any, np.dtype[np.uint32]]

HEADER_WORDS = 4
VERSION = (0, 1)  # major, minor
WRITE, BLOCK_WRITE, MASK_WRITE, MASK_POLL, NOOP, PREEMPT, MASK_POLL_BUSY, LOAD_PDI = (
    *(0, 1, 3, 4, 5, 6, 7, 8),
)
CREATE_SCRATCHPAD, UPDATE_REGISTER = 10, 12
AWAIT, PATCH = 0x80, 0x81
CUSTOM = (0x82, 0x83, 0x84)


@dataclass(frozen=True, slots=True)
class Header:
    generation: int = NPU2.generation
    columns: int = NPU2.columns
    rows: int = NPU2.rows
    memtile_rows: int = NPU2.memtile_rows
    major: int = VERSION[0]
    minor: int = VERSION[1]

    @classmethod
    def for_device(cls, device: Geometry) -> Header:
        return cls(device.generation, device.columns, device.rows, device.memtile_rows)

    def words(self, count: int, nbytes: int) -> list[int]:
        version = self.rows << 24 | self.generation << 16 | self.minor << 8 | self.major
        return [version, self.memtile_rows << 8 | self.columns, count, nbytes]


def header_of(words: Words) -> Header:
    if len(words) < HEADER_WORDS:
        raise StreamFault("truncated", "header", f"{len(words)} words, {HEADER_WORDS} needed")
    version, shape = int(words[0]), int(words[1])
    header = Header(
        generation=version >> 16 & 0xFF,
        columns=shape & 0xFF,
        rows=version >> 24,
        memtile_rows=shape >> 8 & 0xFF,
        major=version & 0xFF,
        minor=version >> 8 & 0xFF,
    )
    if (header.major, header.minor) != VERSION:
        raise StreamFault("header", "version", f"{header.major}.{header.minor}, 0.1 is known")
    if shape >> 16:
        raise StreamFault("reserved", "header", f"word 1 is 0x{shape:08x}")
    return header


def encode(operations: Iterable[Operation], header: Header | None = None) -> Words:
    body: list[int] = []
    count = 0
    for operation in operations:
        try:
            body += _encoded(operation)
        except ValueError as error:
            raise StreamFault("field", f"operation {count}", str(error)) from None
        count += 1
    nbytes = (HEADER_WORDS + len(body)) * 4
    return np.array([*(header or Header()).words(count, nbytes), *body], dtype=np.uint32)


def parse(words: Words) -> tuple[Operation, ...]:
    return tuple(operation for _, operation in numbered(words))


def numbered(words: Words) -> Iterator[tuple[int, Operation]]:
    """(index of its first word, operation) of each."""
    header_of(words)
    count, nbytes = int(words[2]), int(words[3])
    if nbytes != len(words) * 4:
        raise StreamFault("header", "bytes", f"{nbytes} said, {len(words) * 4} there")
    body = words.tolist()
    place, found = HEADER_WORDS, 0
    while place < len(body):
        size, operation = _parsed(body, place)
        yield place, operation
        place += size
        found += 1
    if found != count:
        raise StreamFault("header", "operations", f"{count} said, {found} there")


def _u32(*values: int) -> list[int]:
    for value in values:
        _field(value, 32)
    return list(values)


def _field(value: int, bits: int) -> int:
    if not 0 <= operator.index(value) < 1 << bits:
        raise ValueError(f"{value} does not fit {bits} bits")
    return value


def _encoded(operation: Operation) -> list[int]:
    match operation:
        case Write(register, value):
            return _u32(WRITE, 0, register, 0, value, 24)
        case BlockWrite(register, data, tile):
            return _u32(BLOCK_WRITE, tile, register, 16 + 4 * len(data), *data)
        case MaskWrite(register, value, mask):
            return _u32(MASK_WRITE, 0, register, 0, value, mask, 28)
        case MaskPoll(register, value, mask, busy):
            opcode = MASK_POLL_BUSY if busy else MASK_POLL
            return _u32(opcode, 0, register, 0, value, mask, 28)
        case Noop():
            return [NOOP]
        case Preempt(level):
            return [PREEMPT | _field(level, 24) << 8]
        case LoadPdi(number, size, address):
            _field(address, 64)
            first = LOAD_PDI | _field(number, 16) << 16
            return _u32(first, size, address & 0xFFFFFFFF, address >> 32)
        case CreateScratchpad(usage, size, address):
            _field(address, 64)
            first = CREATE_SCRATCHPAD | _field(usage, 8) << 8
            return _u32(first, size, address & 0xFFFFFFFF, address >> 32)
        case UpdateRegister(register, index, function, argument):
            first = UPDATE_REGISTER | _field(index, 8) << 8 | _field(function, 8) << 16
            return _u32(first, argument, register)
        case Await():
            return _await(operation)
        case Patch(register, argument, offset):
            return _u32(PATCH, 48, 0, 0, 0, 0, register, 0, argument, 0, offset, 0)
        case Custom(opcode, payload):
            if opcode not in CUSTOM:
                raise ValueError(f"0x{opcode:02x} is not one of the custom operations")
            return _u32(opcode, 8 + 4 * len(payload), *payload)


def _await(tct: Await) -> list[int]:
    numbers = (tct.column, tct.row, tct.channel, tct.columns, tct.rows)
    column, row, channel, columns, rows = (_field(number, 8) for number in numbers)
    where = int(tct.fills) | row << 8 | column << 16
    return [AWAIT, 16, where, rows << 8 | columns << 16 | channel << 24]


def _parsed(words: list[int], place: int) -> tuple[int, Operation]:
    opcode = words[place] & 0xFF
    reader = _READERS.get(opcode)
    if reader is None:
        fix = "a length that is wrong before this makes the rest look so"
        raise StreamFault("opcode", f"word {place}", f"0x{opcode:02x} is not known", fix)
    return reader(_Reading(words, place))


class _Reading:
    """One operation's words, and complaints that say where."""

    def __init__(self, words: list[int], place: int) -> None:
        self._words, self._place = words, place

    def take(self, count: int) -> list[int]:
        found = self._words[self._place : self._place + count]
        if len(found) < count:
            what = f"{count} words needed, {len(found)} left"
            raise StreamFault("truncated", self._where, what)
        return found

    def size(self, word: int, least: int) -> int:
        """How many words an operation says it has."""
        nbytes = self.take(word + 1)[word]
        if nbytes % 4 or nbytes < least * 4:
            raise StreamFault("length", self._where, f"an operation of {nbytes} bytes")
        return nbytes // 4

    def zero(self, *words: int) -> None:
        for word in words:
            if value := self._words[self._place + word]:
                raise StreamFault("reserved", self._where, f"its word {word} is 0x{value:08x}")

    def plain(self) -> None:
        if tag := self._words[self._place] >> 8:
            raise StreamFault("reserved", self._where, f"0x{tag:06x} beside its opcode")

    def says(self, word: int, value: int) -> None:
        if self._words[self._place + word] != value:
            what = f"{self._words[self._place + word]} bytes said, it has {value}"
            raise StreamFault("length", self._where, what)

    @property
    def _where(self) -> str:
        return f"word {self._place}"


def _write(r: _Reading) -> tuple[int, Operation]:
    words = r.take(6)
    r.plain()
    r.zero(1, 3)
    r.says(5, 24)
    return 6, Write(words[2], words[4])


def _block_write(r: _Reading) -> tuple[int, Operation]:
    size = r.size(3, 4)
    words = r.take(size)
    r.plain()
    return size, BlockWrite(words[2], tuple(words[4:]), words[1])


def _mask_write(r: _Reading) -> tuple[int, Operation]:
    words = r.take(7)
    r.plain()
    r.zero(1, 3)
    r.says(6, 28)
    return 7, MaskWrite(words[2], words[4], words[5])


def _mask_poll(r: _Reading) -> tuple[int, Operation]:
    words = r.take(7)
    r.plain()
    r.zero(1, 3)
    r.says(6, 28)
    return 7, MaskPoll(words[2], words[4], words[5], words[0] == MASK_POLL_BUSY)


def _noop(r: _Reading) -> tuple[int, Operation]:
    r.plain()
    return 1, Noop()


def _preempt(r: _Reading) -> tuple[int, Operation]:
    return 1, Preempt(r.take(1)[0] >> 8)


def _load_pdi(r: _Reading) -> tuple[int, Operation]:
    first, size, low, high = r.take(4)
    if first >> 8 & 0xFF:
        raise StreamFault("reserved", "load of a PDI", f"its word 0 is 0x{first:08x}")
    return 4, LoadPdi(first >> 16, size, high << 32 | low)


def _create_scratchpad(r: _Reading) -> tuple[int, Operation]:
    first, size, low, high = r.take(4)
    if first >> 16:
        raise StreamFault("reserved", "scratchpad", f"its word 0 is 0x{first:08x}")
    return 4, CreateScratchpad(first >> 8, size, high << 32 | low)


def _update_register(r: _Reading) -> tuple[int, Operation]:
    first, argument, register = r.take(3)
    if first >> 24:
        raise StreamFault("reserved", "register update", f"its word 0 is 0x{first:08x}")
    return 3, UpdateRegister(register, first >> 8 & 0xFF, first >> 16 & 0xFF, argument)


def _tct(r: _Reading) -> tuple[int, Operation]:
    _, _, where, what = r.take(4)
    r.plain()
    r.says(1, 16)
    if where >> 24 or where & 0xFE or what & 0xFF:
        raise StreamFault("reserved", "await", f"0x{where:08x} 0x{what:08x}")
    tile = (where >> 16 & 0xFF, where >> 8 & 0xFF)
    return 4, Await(*tile, bool(where & 1), what >> 24, what >> 16 & 0xFF, what >> 8 & 0xFF)


def _patch(r: _Reading) -> tuple[int, Operation]:
    words = r.take(12)
    r.plain()
    r.says(1, 48)
    r.zero(2, 3, 4, 5, 7, 9, 11)
    return 12, Patch(words[6], words[8], words[10])


def _custom(r: _Reading) -> tuple[int, Operation]:
    size = r.size(1, 2)
    words = r.take(size)
    r.plain()
    return size, Custom(words[0], tuple(words[2:]))


_READERS: dict[int, Callable[[_Reading], tuple[int, Operation]]] = {
    WRITE: _write,
    BLOCK_WRITE: _block_write,
    MASK_WRITE: _mask_write,
    MASK_POLL: _mask_poll,
    MASK_POLL_BUSY: _mask_poll,
    NOOP: _noop,
    PREEMPT: _preempt,
    LOAD_PDI: _load_pdi,
    CREATE_SCRATCHPAD: _create_scratchpad,
    UPDATE_REGISTER: _update_register,
    AWAIT: _tct,
    PATCH: _patch,
    **dict.fromkeys(CUSTOM, _custom),
}

"""A stream as lines to read: the index of the word, the tile, the register's name."""

from __future__ import annotations

from npu_kernels.txn.check import ARGUMENTS_MAX, buffer_offset
from npu_kernels.txn.descriptors import DESCRIPTOR_WORDS, Descriptor, Dim
from npu_kernels.txn.geometry import Place
from npu_kernels.txn.operations import (
    Await,
    BlockWrite,
    Custom,
    MaskPoll,
    MaskWrite,
    Operation,
    Patch,
    UpdateRegister,
    Write,
)
from npu_kernels.txn.shim import CONTROL, DESCRIPTOR_BASE, DESCRIPTOR_BYTES, QUEUE, TOKEN_BIT
from npu_kernels.txn.shim import descriptor_number as shim_descriptor
from npu_kernels.txn.words import Words, header_of, numbered


def listing(words: Words) -> str:
    header = header_of(words)
    first = f"v{header.major}.{header.minor}, generation {header.generation}"
    shape = f"{header.columns} columns of {header.rows}, {int(words[2])} operations"
    lines = [f"{first}, {shape}, {int(words[3])} bytes"]
    lines += [f"{index:6d}  {line(operation)}" for index, operation in numbered(words)]
    return "\n".join(lines)


def line(operation: Operation) -> str:
    match operation:
        case Write(register, value):
            return f"write       {register_name(register)} = {_value(register, value)}"
        case BlockWrite(register, data):
            return f"block write {register_name(register)} = {_block(register, data)}"
        case MaskWrite(register, value, mask):
            return f"mask write  {register_name(register)} = 0x{value:08x} & 0x{mask:08x}"
        case MaskPoll(register, value, mask, busy):
            sign = "!=" if busy else "=="
            return f"poll        {register_name(register)} & 0x{mask:08x} {sign} 0x{value:08x}"
        case Patch(register, argument, offset):
            place = f"argument {argument} + {buffer_offset(argument, offset)}"
            aperture = " + aperture" if argument >= ARGUMENTS_MAX and offset >> 31 else ""
            return f"patch       {register_name(register)} = {place}{aperture}"
        case Await(column, row, fills, channel, columns, rows):
            size = "" if (columns, rows) == (1, 1) else f" to ({column + columns - 1},{row})"
            return f"await       ({column},{row}){size} {_channel(fills, channel)}"
        case UpdateRegister(register, index, function, argument):
            return f"update      {register_name(register)} by {index}, {function}({argument})"
        case Custom(opcode, payload):
            return f"custom      0x{opcode:02x}, {len(payload)} words"
        case _:
            fields = str(operation)
            return f"{fields[: fields.index('(')].lower():11s} {fields[fields.index('(') :]}"


def register_name(register: int) -> str:
    place = Place.of(register)
    return f"({place.column},{place.row}) {_within(place)}"


def _within(place: Place) -> str:
    offset = place.offset
    if place.kind == "memtile":
        for base, size, step, name in _MEMTILE:
            if base <= offset < base + size * step:
                return _element(name, offset - base, step)
        return f"memory+0x{offset:05x}" if offset < 0x80000 else f"0x{offset:05x}"
    if place.kind == "shim" and offset in QUEUE:
        return f"{_channel(*QUEUE[offset])} queue"
    if place.kind == "shim" and offset in CONTROL:
        return f"{_channel(*CONTROL[offset])} control"
    for base, size, step, name in _SHIM if place.kind == "shim" else _CORE:
        if base <= offset < base + size * step:
            return _element(name, offset - base, step)
    return (
        f"memory+0x{offset:05x}" if place.kind == "core" and offset < 0x10000 else f"0x{offset:05x}"
    )


def _element(name: str, offset: int, step: int) -> str:
    number, rest = divmod(offset, step)
    return f"{name} {number}" + (f", word {rest // 4}" if rest else "")


# (base, elements, bytes of an element, name)
_SHIM = (
    (DESCRIPTOR_BASE, 16, DESCRIPTOR_BYTES, "descriptor"),
    (0x14000, 16, 16, "lock"),
)
_MEMTILE = (
    (0xA0000, 48, 0x20, "descriptor"),
    (0xA0600, 6, 8, "S2MM"),
    (0xA0630, 6, 8, "MM2S"),
    (0xC0000, 64, 16, "lock"),
)
_CORE = (
    (0x1D000, 16, 0x20, "descriptor"),
    (0x1DE00, 2, 8, "S2MM"),
    (0x1DE10, 2, 8, "MM2S"),
    (0x1F000, 16, 16, "lock"),
)


def _channel(fills: bool, number: int) -> str:
    return f"{'MM2S' if fills else 'S2MM'}{number}"


def _value(register: int, value: int) -> str:
    place = Place.of(register)
    if place.kind != "shim" or place.offset not in QUEUE:
        return f"0x{value:08x}"
    repeats = (value >> 16 & 0xFF) + 1
    times = "" if repeats == 1 else f", {repeats} times"
    return f"descriptor {value & 0xF}{times}" + (", token" if value & TOKEN_BIT else "")


def _block(register: int, data: tuple[int, ...]) -> str:
    place = Place.of(register)
    whole = place.offset % DESCRIPTOR_BYTES == 0 and len(data) == DESCRIPTOR_WORDS
    if place.kind != "shim" or shim_descriptor(place.offset) is None or not whole:
        return f"{len(data)} words: {' '.join(f'{word:08x}' for word in data[:8])}" + (
            " ..." if len(data) > 8 else ""
        )
    descriptor = Descriptor.of(data)
    parts = [f"{descriptor.length} words"]
    if not descriptor.linear:
        dims = (descriptor.d0, descriptor.d1, Dim(0, descriptor.d2_step))
        parts.append(" ".join(f"[{dim.size or '-'} by {dim.step}]" for dim in dims))
    if descriptor.iteration.size > 1:
        parts.append(f"{descriptor.iteration.size} positions by {descriptor.iteration.step}")
    if descriptor.following is not None:
        parts.append(f"then {descriptor.following}")
    return ", ".join(parts)

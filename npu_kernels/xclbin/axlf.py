"""The container itself: a header, section headers, sections at multiples of 8 bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

MAGIC = b"xclbin2\0"
HEADER_AT = 0x130
SECTIONS_AT = 0x1C8
UNSIGNED = -1
SECTIONS_MAX = 0x10000

EMBEDDED_METADATA, MEM_TOPOLOGY, CONNECTIVITY, IP_LAYOUT = 2, 6, 7, 8
GROUP_TOPOLOGY, GROUP_CONNECTIVITY, AIE_PARTITION = 26, 27, 32

_START = struct.Struct("<8si28s256sQ")  # magic, signature's length, reserved, keys, unique id
_HEADER = struct.Struct("<QQQHBBHH16s64s16s16sI4x")
_SECTION = struct.Struct("<I16s4xQQ")


class XclbinFault(Exception):
    """These bytes are no xclbin, or not a whole one."""


@dataclass(frozen=True, slots=True)
class Section:
    kind: int
    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Axlf:
    uuid: UUID
    timestamp: int
    sections: tuple[Section, ...]


def unpack(data: bytes) -> Axlf:
    if data[: len(MAGIC)] != MAGIC:
        raise XclbinFault(f"it begins with {data[: len(MAGIC)]!r}, not with {MAGIC!r}")
    if len(data) < SECTIONS_AT:
        raise XclbinFault(f"{len(data)} bytes: cut short within its header of {SECTIONS_AT}")
    fields = _HEADER.unpack_from(data, HEADER_AT)
    length, timestamp, identity, count = fields[0], fields[1], fields[10], fields[12]
    if length != len(data):
        state = "cut short" if len(data) < length else "longer than it says"
        raise XclbinFault(f"{state}: {len(data)} bytes of {length}")
    if count > SECTIONS_MAX or SECTIONS_AT + count * _SECTION.size > len(data):
        raise XclbinFault(f"headers of {count} sections do not fit {len(data)} bytes")
    first = SECTIONS_AT + count * _SECTION.size
    sections = tuple(_section(data, number, first) for number in range(count))
    return Axlf(UUID(bytes=identity), timestamp, sections)


def _section(data: bytes, number: int, first: int) -> Section:
    kind, name, offset, size = _SECTION.unpack_from(data, SECTIONS_AT + number * _SECTION.size)
    if offset < first or offset + size > len(data):
        place = f"bytes {offset} to {offset + size}"
        raise XclbinFault(f"section {number} (kind {kind}) has {place} of {len(data)}")
    return Section(kind, text(name), data[offset : offset + size])


def pack(uuid: UUID, sections: Sequence[Section], timestamp: int = 0) -> bytes:
    place = SECTIONS_AT + len(sections) * _SECTION.size
    headers, body = b"", b""
    for section in sections:
        padding = -(place + len(body)) % 8
        body += bytes(padding)
        name = section.name.encode()[:15]
        headers += _SECTION.pack(section.kind, name, place + len(body), len(section.data))
        body += section.data
    length = place + len(body)
    start = _START.pack(MAGIC, UNSIGNED, b"\xff" * 28, bytes(256), timestamp)
    header = _HEADER.pack(
        *(length, timestamp, 0, 0, 2, 26, 0, 0),
        *(bytes(16), bytes(64), uuid.bytes, bytes(16), len(sections)),
    )
    return start + header + headers + body


def text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "replace")

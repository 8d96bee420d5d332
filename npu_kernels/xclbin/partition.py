"""AIE_PARTITION: which columns, and the images (PDI) that configure them.

All offsets count from the section's start; arrays are (size, offset) pairs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from npu_kernels.xclbin.axlf import XclbinFault, text

KERNEL_ID = 0x901
PDI_NUMBER = 0x01
PRE_GROUP = 0xC1
PRIMARY = 1  # the type of a CDO group
OPERATIONS_PER_CYCLE = 2048

_PARTITION = struct.Struct("<B3xII4xQQ H6xII72x II I52x")
_PDI = struct.Struct("<16sIIII64x")
_GROUP = struct.Struct("<IB3xQIIII64x")


@dataclass(frozen=True, slots=True)
class Pdi:
    uuid: UUID
    image: bytes
    kernel_ids: tuple[int, ...] = (KERNEL_ID,)


@dataclass(frozen=True, slots=True)
class Partition:
    columns: int
    start_columns: tuple[int, ...]
    pdis: tuple[Pdi, ...]
    name: str = "QoS"


def unpack(data: bytes) -> Partition:
    fields = _unpacked(_PARTITION, data, 0, 1)[0]
    _, name, _, _, _, columns, starts, starts_at, pdis, pdis_at, _ = fields
    begins = _unpacked(struct.Struct("<H"), data, starts_at, starts)
    found = [_pdi(data, record) for record in _unpacked(_PDI, data, pdis_at, pdis)]
    return Partition(
        columns, tuple(begin for (begin,) in begins), tuple(found), _string(data, name)
    )


def _pdi(data: bytes, record: tuple[Any, ...]) -> Pdi:
    identity, size, image_at, groups, groups_at = record
    if image_at + size > len(data):
        raise XclbinFault(f"an image of {size} bytes at {image_at} of a partition of {len(data)}")
    kernels: list[int] = []
    for group in _unpacked(_GROUP, data, groups_at, groups):
        _, _, _, count, ids_at, _, _ = group
        kernels += [number for (number,) in _unpacked(struct.Struct("<Q"), data, ids_at, count)]
    image = data[image_at : image_at + size]
    return Pdi(UUID(bytes=identity), image, tuple(kernels))


def _unpacked(record: struct.Struct, data: bytes, offset: int, count: int) -> list[tuple[Any, ...]]:
    if offset + count * record.size > len(data):
        end = offset + count * record.size
        raise XclbinFault(f"a partition of {len(data)} bytes; its tables end at {end}")
    return [record.unpack_from(data, offset + n * record.size) for n in range(count)]


def _string(data: bytes, offset: int) -> str:
    if offset >= len(data):
        raise XclbinFault(f"a name at {offset} in a partition of {len(data)} bytes")
    return text(data[offset:])


def pack(partition: Partition) -> bytes:
    heap = _Heap(_PARTITION.size)
    name = heap.add(partition.name.encode() + b"\0")
    starts = heap.add(struct.pack(f"<{len(partition.start_columns)}H", *partition.start_columns))
    records = b""
    for pdi in partition.pdis:
        image = heap.add(pdi.image)
        group_name = heap.add(b"DPU\0")
        ids = heap.add(struct.pack(f"<{len(pdi.kernel_ids)}Q", *pdi.kernel_ids))
        before = heap.add(struct.pack("<I", PRE_GROUP))
        count = len(pdi.kernel_ids)
        group = _GROUP.pack(group_name, PRIMARY, PDI_NUMBER, count, ids, 1, before)
        records += _PDI.pack(pdi.uuid.bytes, len(pdi.image), image, 1, heap.add(group))
    pdis = heap.add(records)
    commit = heap.add(b"\0")
    head = _PARTITION.pack(
        *(0, name, OPERATIONS_PER_CYCLE, 0, 0, partition.columns),
        *(len(partition.start_columns), starts, len(partition.pdis), pdis, commit),
    )
    return head + heap.data


class _Heap:
    """What the offsets of a section point to, each at a multiple of 8."""

    def __init__(self, start: int) -> None:
        self._start = start
        self.data = b""

    def add(self, data: bytes) -> int:
        offset = self._start + len(self.data)
        self.data += data + bytes(-len(data) % 8)
        return offset

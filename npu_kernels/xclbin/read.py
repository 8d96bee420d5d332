"""What XRT finds in an xclbin: kernels and their arguments, memories, the partition's images."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any
from uuid import UUID
from xml.etree import ElementTree

from npu_kernels.xclbin import partition as partitions
from npu_kernels.xclbin.axlf import (
    AIE_PARTITION,
    CONNECTIVITY,
    EMBEDDED_METADATA,
    MEM_TOPOLOGY,
    Section,
    XclbinFault,
    text,
    unpack,
)
from npu_kernels.xclbin.partition import Partition

GLOBAL = 1  # the qualifier of a buffer; a scalar's is 0
_MEMORY = struct.Struct("<BB6xQQ16s")
_CONNECTION = struct.Struct("<iii")


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    index: int
    buffer: bool
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """`number` says which of the partition's images is its own."""

    name: str
    arguments: tuple[Argument, ...]
    number: int


@dataclass(frozen=True, slots=True)
class Memory:
    tag: str
    base: int
    size_kb: int
    used: bool


@dataclass(frozen=True, slots=True)
class Xclbin:
    uuid: UUID
    kernels: tuple[Kernel, ...]
    memories: tuple[Memory, ...]
    banks: tuple[tuple[int, int], ...]  # (argument, memory) of each connection
    partition: Partition
    sections: tuple[Section, ...]

    def kernel(self, name: str) -> Kernel | None:
        return next((kernel for kernel in self.kernels if kernel.name == name), None)

    def image(self, kernel: Kernel) -> bytes | None:
        """What configures the array for it."""
        pdis = self.partition.pdis
        return next((pdi.image for pdi in pdis if kernel.number in pdi.kernel_ids), None)


def read(data: bytes) -> Xclbin:
    axlf = unpack(data)
    sections = {section.kind: section for section in axlf.sections}
    return Xclbin(
        axlf.uuid,
        _kernels(_needed(sections, EMBEDDED_METADATA, "EMBEDDED_METADATA")),
        _memories(_needed(sections, MEM_TOPOLOGY, "MEM_TOPOLOGY")),
        _banks(_needed(sections, CONNECTIVITY, "CONNECTIVITY")),
        partitions.unpack(_needed(sections, AIE_PARTITION, "AIE_PARTITION")),
        axlf.sections,
    )


def _needed(sections: dict[int, Section], kind: int, name: str) -> bytes:
    if kind not in sections:
        raise XclbinFault(f"it has no section {name}: not made for an NPU")
    return sections[kind].data


def _kernels(data: bytes) -> tuple[Kernel, ...]:
    try:
        root = ElementTree.fromstring(data.rstrip(b"\0"))
        kernels = root.findall("./platform/device/core/kernel")
        found = tuple(
            Kernel(kernel.attrib["name"], _arguments(kernel), _number(kernel)) for kernel in kernels
        )
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        raise XclbinFault(f"its metadata cannot be read: {error!r}") from None
    if not found:
        raise XclbinFault("its metadata names no kernel")
    return found


def _number(kernel: ElementTree.Element) -> int:
    extended = kernel.find("extended-data")
    return int((extended.attrib if extended is not None else {})["dpu_kernel_id"], 0)


def _arguments(kernel: ElementTree.Element) -> tuple[Argument, ...]:
    arguments = [
        Argument(
            name=arg.attrib["name"],
            index=int(arg.attrib["id"], 0),
            buffer=int(arg.attrib["addressQualifier"], 0) == GLOBAL,
            offset=int(arg.attrib["offset"], 16),
            size=int(arg.attrib["size"], 16),
        )
        for arg in kernel.findall("arg")
    ]
    return tuple(sorted(arguments, key=lambda argument: argument.index))


def _memories(data: bytes) -> tuple[Memory, ...]:
    records = _table(data, _MEMORY, 8, "MEM_TOPOLOGY")
    return tuple(Memory(text(tag), base, size, bool(used)) for _, used, size, base, tag in records)


def _banks(data: bytes) -> tuple[tuple[int, int], ...]:
    records = _table(data, _CONNECTION, 4, "CONNECTIVITY")
    return tuple((argument, memory) for argument, _, memory in records)


def _table(data: bytes, record: struct.Struct, start: int, name: str) -> list[tuple[Any, ...]]:
    """Records after a 32-bit count."""
    count = int.from_bytes(data[:4], "little")
    if len(data) < 4 or start + count * record.size > len(data):
        raise XclbinFault(f"{name}: {count} entries do not fit {len(data)} bytes")
    return [record.unpack_from(data, start + n * record.size) for n in range(count)]

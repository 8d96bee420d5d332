"""An xclbin around images, each for a kernel of its own: what xclbinutil makes of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from uuid import UUID

from npu_kernels.xclbin import partition as partitions
from npu_kernels.xclbin.axlf import (
    AIE_PARTITION,
    CONNECTIVITY,
    EMBEDDED_METADATA,
    GROUP_CONNECTIVITY,
    GROUP_TOPOLOGY,
    IP_LAYOUT,
    MEM_TOPOLOGY,
    Section,
    XclbinFault,
    pack,
)
from npu_kernels.xclbin.partition import KERNEL_ID, Partition, Pdi

BUFFERS_MIN = 5  # the firmware's chained commands need as many declared, used or not
HOST, SRAM = 0, 1
_DRAM = 2
_MEMORIES = ((0x10000, 0x4000000, "HOST"), (0xC000, 0x4000000, "SRAM"))  # KB, base, tag
_PS_KERNEL, _DPU = 7, 1
_NO_ADDRESS = 0xFFFFFFFFFFFFFFFF
_INSTANCE = ":MLIRAIE"
NAME_MAX = 63  # of 64 bytes, with its end


def write(
    image: bytes,
    uuid: UUID,
    *,
    columns: int,
    buffers: int = BUFFERS_MIN,
    kernel: str = "MLIR_AIE",
    start_columns: tuple[int, ...] = (0,),
) -> bytes:
    """Of one kernel."""
    return write_all(
        {kernel: image}, uuid, columns=columns, buffers=buffers, start_columns=start_columns
    )


def write_all(
    images: Mapping[str, bytes],
    uuid: UUID,
    *,
    columns: int,
    buffers: int = BUFFERS_MIN,
    start_columns: tuple[int, ...] = (0,),
) -> bytes:
    """Of several, by name: a context that runs another one than before loads its image."""
    if buffers < BUFFERS_MIN:
        raise XclbinFault(f"{buffers} buffers declared; declare {BUFFERS_MIN}, used or not")
    for kernel in images:
        if len(f"{kernel}{_INSTANCE}") > NAME_MAX:
            raise XclbinFault(f"kernel {kernel}: its name and instance are over {NAME_MAX} bytes")
    pdis = tuple(
        Pdi(UUID(int=(uuid.int + n) % 2**128), image, (KERNEL_ID + n,))
        for n, image in enumerate(images.values())
    )
    arguments = range(3, 3 + buffers)
    connections = [
        (argument, kernel, SRAM if argument == 1 else HOST)
        for kernel in range(len(images))
        for argument in (1, *arguments)
    ]
    sections = (
        Section(MEM_TOPOLOGY, "mem", _topology()),
        Section(AIE_PARTITION, "aie", partitions.pack(Partition(columns, start_columns, pdis))),
        Section(EMBEDDED_METADATA, "emb", _metadata(images, buffers).encode()),
        Section(IP_LAYOUT, "ip", _layout(images)),
        Section(CONNECTIVITY, "conn", _connectivity(connections)),
        Section(GROUP_CONNECTIVITY, "gconn", _connectivity(connections)),
        Section(GROUP_TOPOLOGY, "gmem", _topology()),
    )
    return pack(uuid, sections)


def _topology() -> bytes:
    records = (
        struct.pack("<BB6xQQ16s", _DRAM, 1, size, base, tag.encode())
        for size, base, tag in _MEMORIES
    )
    return struct.pack("<i4x", len(_MEMORIES)) + b"".join(records)


def _layout(kernels: Iterable[str]) -> bytes:
    records = [
        struct.pack(
            *("<IIQ64s", _PS_KERNEL, _DPU | KERNEL_ID + n << 16, _NO_ADDRESS),
            f"{kernel}{_INSTANCE}".encode(),
        )
        for n, kernel in enumerate(kernels)
    ]
    return struct.pack("<i4x", len(records)) + b"".join(records)


def _connectivity(connections: list[tuple[int, int, int]]) -> bytes:
    """(argument, kernel, memory) of each."""
    records = (struct.pack("<iii", *connection) for connection in connections)
    return struct.pack("<i", len(connections)) + b"".join(records)


def _metadata(kernels: Iterable[str], buffers: int) -> str:
    each = "\n".join(_kernel(name, KERNEL_ID + n, buffers) for n, name in enumerate(kernels))
    return f"""<?xml version="1.0" encoding="utf-8"?>
<project>
  <platform>
    <device>
      <core>
{each}
      </core>
    </device>
  </platform>
</project>
"""


def _kernel(name: str, number: int, buffers: int) -> str:
    """Offsets are those of the command's payload: the buffers follow each other from 0x14."""
    arguments = [
        _argument("opcode", 0, 0, 8, 0x00, "uint64_t"),
        _argument("instr", 1, 1, 8, 0x08, "char *"),
        _argument("ninstr", 2, 0, 4, 0x10, "uint32_t"),
        *(_argument(f"bo{n}", 3 + n, 1, 8, 0x14 + 8 * n, "void*") for n in range(buffers)),
    ]
    lines = "\n".join(f"          {argument}" for argument in arguments)
    extended = f'<extended-data subtype="1" functional="0" dpu_kernel_id="{number:#x}"/>'
    return f"""        <kernel name="{name}" language="c" type="dpu">
          {extended}
{lines}
          <instance name="MLIRAIE"/>
        </kernel>"""


def _argument(name: str, index: int, qualifier: int, size: int, offset: int, type_: str) -> str:
    return (
        f'<arg name="{name}" addressQualifier="{qualifier}" id="{index}" size="{size:#x}" '
        f'offset="{offset:#x}" hostOffset="0x0" hostSize="{size:#x}" type="{type_}"/>'
    )

"""An xclbin around an image: what xclbinutil makes for one kernel of the NPU."""

from __future__ import annotations

import struct
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


def write(
    image: bytes,
    uuid: UUID,
    *,
    columns: int,
    buffers: int = BUFFERS_MIN,
    kernel: str = "MLIR_AIE",
    start_columns: tuple[int, ...] = (0,),
) -> bytes:
    if buffers < BUFFERS_MIN:
        raise XclbinFault(f"{buffers} buffers declared; declare {BUFFERS_MIN}, used or not")
    pdi = Pdi(uuid, image)
    arguments = range(3, 3 + buffers)
    connections = [(1, SRAM), *((argument, HOST) for argument in arguments)]
    sections = (
        Section(MEM_TOPOLOGY, "mem", _topology()),
        Section(AIE_PARTITION, "aie", partitions.pack(Partition(columns, start_columns, (pdi,)))),
        Section(EMBEDDED_METADATA, "emb", _metadata(kernel, buffers).encode()),
        Section(IP_LAYOUT, "ip", _layout(f"{kernel}:MLIRAIE")),
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


def _layout(name: str) -> bytes:
    properties = _DPU | KERNEL_ID << 16
    return struct.pack("<i4xIIQ64s", 1, _PS_KERNEL, properties, _NO_ADDRESS, name.encode())


def _connectivity(connections: list[tuple[int, int]]) -> bytes:
    records = (struct.pack("<iii", argument, 0, memory) for argument, memory in connections)
    return struct.pack("<i", len(connections)) + b"".join(records)


def _metadata(kernel: str, buffers: int) -> str:
    """Offsets are those of the command's payload: the buffers follow each other from 0x14."""
    arguments = [
        _argument("opcode", 0, 0, 8, 0x00, "uint64_t"),
        _argument("instr", 1, 1, 8, 0x08, "char *"),
        _argument("ninstr", 2, 0, 4, 0x10, "uint32_t"),
        *(_argument(f"bo{n}", 3 + n, 1, 8, 0x14 + 8 * n, "void*") for n in range(buffers)),
    ]
    lines = "\n".join(f"          {argument}" for argument in arguments)
    extended = f'<extended-data subtype="1" functional="0" dpu_kernel_id="{KERNEL_ID:#x}"/>'
    return f"""<?xml version="1.0" encoding="utf-8"?>
<project>
  <platform>
    <device>
      <core>
        <kernel name="{kernel}" language="c" type="dpu">
          {extended}
{lines}
          <instance name="MLIRAIE"/>
        </kernel>
      </core>
    </device>
  </platform>
</project>
"""


def _argument(name: str, index: int, qualifier: int, size: int, offset: int, type_: str) -> str:
    return (
        f'<arg name="{name}" addressQualifier="{qualifier}" id="{index}" size="{size:#x}" '
        f'offset="{offset:#x}" hostOffset="0x0" hostSize="{size:#x}" type="{type_}"/>'
    )

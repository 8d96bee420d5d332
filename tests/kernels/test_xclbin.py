"""What is written is read again; what is not whole is refused, never half read."""

import struct
from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_kernels.xclbin import Xclbin, XclbinFault, read, write, write_all
from npu_kernels.xclbin.axlf import SECTIONS_AT, Section, pack

IDENTITY = UUID("38668b23-339b-4deb-a254-5b95c75af8d3")
IMAGE = bytes(range(256)) * 16


def container(**options: int) -> bytes:
    return write(IMAGE, IDENTITY, **{"columns": 8, **options})


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=5000), st.uuids(), st.integers(1, 8), st.integers(5, 16))
def test_what_is_written_is_read(image: bytes, uuid: UUID, columns: int, buffers: int) -> None:
    found = read(write(image, uuid, columns=columns, buffers=buffers, start_columns=(0, 4)))
    assert found.uuid == uuid
    assert found.partition.columns == columns
    assert found.partition.start_columns == (0, 4)
    (pdi,) = found.partition.pdis
    assert (pdi.uuid, pdi.image, pdi.kernel_ids) == (uuid, image, (0x901,))
    (kernel,) = found.kernels
    assert kernel.name == "MLIR_AIE"
    assert len(kernel.arguments) == 3 + buffers
    assert [argument.buffer for argument in kernel.arguments] == [False, True, False] + (
        [True] * buffers
    )


def test_each_of_several_kernels_has_its_own_image() -> None:
    images = {"qlinear_576": b"one", "swiglu_1536": b"another", "third": b"one"}
    found = read(write_all(images, IDENTITY, columns=8))
    assert {kernel.name: found.image(kernel) for kernel in found.kernels} == images
    assert len({kernel.number for kernel in found.kernels}) == 3
    assert len({pdi.uuid for pdi in found.partition.pdis}) == 3


def test_a_name_that_its_section_would_cut_is_refused() -> None:
    with pytest.raises(XclbinFault, match="over 63 bytes"):
        write_all({"k" * 60: IMAGE}, IDENTITY, columns=8)


def test_arguments_lie_where_the_command_has_them() -> None:
    (kernel,) = read(container()).kernels
    offsets = [argument.offset for argument in kernel.arguments]
    assert offsets == [0x00, 0x08, 0x10, 0x14, 0x1C, 0x24, 0x2C, 0x34]
    names = ["opcode", "instr", "ninstr", "bo0", "bo1", "bo2", "bo3", "bo4"]
    assert [argument.name for argument in kernel.arguments] == names


def test_instructions_come_from_sram_and_buffers_from_the_host() -> None:
    found = read(container())
    host, sram = found.memories
    assert (host.tag, host.size_kb) == ("HOST", 0x10000)
    assert (sram.tag, sram.size_kb, sram.base) == ("SRAM", 0xC000, 0x4000000)
    assert found.banks == ((1, 1), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0))


def test_the_layout_of_the_header() -> None:
    data = container()
    assert data[:8] == b"xclbin2\0"
    assert data[8:12] == b"\xff" * 4  # no signature
    assert data[12:40] == b"\xff" * 28
    assert struct.unpack_from("<Q", data, 0x130) == (len(data),)
    assert data[0x1A0:0x1B0] == IDENTITY.bytes
    assert struct.unpack_from("<I", data, 0x1C0) == (7,)
    kinds = [struct.unpack_from("<I", data, 0x1C8 + 40 * n)[0] for n in range(7)]
    assert sorted(kinds) == [2, 6, 7, 8, 26, 27, 32]
    assert all(struct.unpack_from("<Q", data, 0x1C8 + 40 * n + 24)[0] % 8 == 0 for n in range(7))


def test_the_layout_of_a_kernel_and_of_the_partition() -> None:
    sections = {section.kind: section.data for section in read(container()).sections}
    assert sections[8][24:].rstrip(b"\0") == b"MLIR_AIE:MLIRAIE"
    assert struct.unpack_from("<IHH", sections[8], 8) == (7, 1, 0x901)
    assert struct.unpack_from("<H", sections[32], 0x20) == (8,)
    count, offset = struct.unpack_from("<II", sections[32], 0x78)
    assert count == 1
    assert sections[32][offset : offset + 16] == IDENTITY.bytes


def test_fewer_than_five_buffers_are_not_declared() -> None:
    with pytest.raises(XclbinFault, match="declare 5"):
        container(buffers=4)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(container()) - 1))
def test_one_cut_short_is_refused(length: int) -> None:
    with pytest.raises(XclbinFault):
        read(container()[:length])


def changed(offset: int, data: bytes) -> bytes:
    whole = bytearray(container())
    whole[offset : offset + len(data)] = data
    return bytes(whole)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed(0, b"xclbin1\0"), "begins with"),
        (changed(0x130, struct.pack("<Q", 10**6)), "cut short"),
        (container() + b"\0", "longer than it says"),
        (changed(0x1C0, struct.pack("<I", 60000)), "headers of 60000"),
        (changed(SECTIONS_AT + 24, struct.pack("<Q", 10**9)), "section 0"),
        (changed(SECTIONS_AT + 24, struct.pack("<Q", 8)), "section 0"),
        (changed(SECTIONS_AT + 32, struct.pack("<Q", 10**9)), "section 0"),
        (changed(SECTIONS_AT + 40 * 2, struct.pack("<I", 99)), "no section EMBEDDED_METADATA"),
    ],
)
def test_one_that_contradicts_itself_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(XclbinFault, match=message):
        read(data)


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (2, b"<project", "metadata cannot be read"),
        (2, b"<project/>", "names no kernel"),
        (6, struct.pack("<i4x", 9), "MEM_TOPOLOGY: 9 entries"),
        (7, b"", "CONNECTIVITY: 0 entries do not fit 0"),
        (32, bytes(100), "partition of 100 bytes"),
        (32, bytes(0x78) + struct.pack("<II", 7, 0) + bytes(56), "tables end"),
    ],
)
def test_a_section_that_is_broken_is_refused(kind: int, data: bytes, message: str) -> None:
    def sections(found: Xclbin) -> list[Section]:
        return [Section(s.kind, s.name, data if s.kind == kind else s.data) for s in found.sections]

    with pytest.raises(XclbinFault, match=message):
        read(pack(IDENTITY, sections(read(container()))))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_no_byte_makes_it_crash(data: st.DataObject) -> None:
    whole = bytearray(container())
    for _ in range(4):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(XclbinFault):
        read(bytes(whole))

"""Words and operations are the same thing: what is parsed is encoded again bit for bit."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_kernels.txn import (
    NPU1,
    Await,
    BlockWrite,
    CreateScratchpad,
    Custom,
    Header,
    LoadPdi,
    MaskPoll,
    MaskWrite,
    Noop,
    Operation,
    Patch,
    Preempt,
    StreamFault,
    UpdateRegister,
    Words,
    Write,
    encode,
    header_of,
    listing,
    parse,
)
from tests.kernels.txn_streams import copy, descriptor

u8, u16, u24, u32 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 24, 32))
u64 = st.integers(0, 2**64 - 1)
block = st.lists(u32, max_size=12).map(tuple)
operations = st.lists(
    st.one_of(
        st.builds(Write, u32, u32),
        st.builds(BlockWrite, u32, block, u32),
        st.builds(MaskWrite, u32, u32, u32),
        st.builds(MaskPoll, u32, u32, u32, st.booleans()),
        st.just(Noop()),
        st.builds(Preempt, u24),
        st.builds(LoadPdi, u16, u32, u64),
        st.builds(CreateScratchpad, u8, u32, u64),
        st.builds(UpdateRegister, u32, u8, u8, u32),
        st.builds(Await, u8, u8, st.booleans(), u8, u8, u8),
        st.builds(Patch, u32, u32, u32),
        st.builds(Custom, st.sampled_from([0x82, 0x83, 0x84]), block),
    )
)

# By hand, from the description of the format.
GOLDEN = """
06040100 00000108 00000006 000000C0
00000001 00000000 0001D020 00000030
    00000040 00000000 00000000 00000000 C0000000 02000000 00000000 02000000
00000081 00000030 00000000 00000000 00000000 00000000 0001D024 00000000 00000000 00000000 00000100
    00000000
00000003 00000000 0001D210 00000000 00000F00 00001F00 0000001C
00000000 00000000 0001D214 00000000 80000001 00000018
00000080 00000010 00000001 00010100
00000106
"""
MEANT: list[Operation] = [
    BlockWrite(0x1D020, (0x40, 0, 0, 0, 0xC0000000, 0x02000000, 0, 0x02000000)),
    Patch(0x1D024, 0, 256),
    MaskWrite(0x1D210, 0xF00, 0x1F00),
    Write(0x1D214, 0x80000001),
    Await(0, 0, True, 0),
    Preempt(1),
]


def golden() -> Words:
    return np.array([int(word, 16) for word in GOLDEN.split()], dtype=np.uint32)


def test_a_stream_written_by_hand_says_what_it_means() -> None:
    words = golden()
    words[3] = len(words) * 4
    assert list(parse(words)) == MEANT
    assert np.array_equal(encode(MEANT), words)


@settings(deadline=None, max_examples=60)
@given(operations)
def test_what_is_encoded_is_parsed(meant: list[Operation]) -> None:
    words = encode(meant)
    assert list(parse(words)) == meant
    assert np.array_equal(encode(parse(words), header_of(words)), words)


@settings(deadline=None, max_examples=60)
@given(operations.filter(bool), st.data())
def test_a_stream_cut_short_is_refused(meant: list[Operation], data: st.DataObject) -> None:
    words = encode(meant)
    with pytest.raises(StreamFault):
        parse(words[: data.draw(st.integers(0, len(words) - 1))])


@settings(deadline=None, max_examples=60)
@given(operations.filter(bool), st.data())
def test_no_word_is_ignored(meant: list[Operation], data: st.DataObject) -> None:
    """Another bit is another meaning, or a fault: never the same operations."""
    words = encode(meant)
    index = data.draw(st.integers(4, len(words) - 1))
    words[index] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
    with suppress(StreamFault):
        assert list(parse(words)) != meant


def test_a_header_knows_its_device() -> None:
    words = encode([Noop()], Header.for_device(NPU1))
    assert words[0] == 0x06030100
    assert words[1] == 0x105
    assert header_of(words).generation == NPU1.generation


@pytest.mark.parametrize(
    ("index", "value", "rule"),
    [(0, 0x06040200, "header"), (1, 0x10108, "reserved"), (2, 2, "header"), (3, 24, "header")],
)
def test_a_header_that_says_otherwise(index: int, value: int, rule: str) -> None:
    words = encode([Noop()])
    words[index] = value
    with pytest.raises(StreamFault) as fault:
        parse(words)
    assert fault.value.rule == rule


@pytest.mark.parametrize(
    ("operation", "index", "value", "rule"),
    [
        (Noop(), 0, 0x7F, "opcode"),
        (Write(4, 5), 0, 0x100, "reserved"),
        (Write(4, 5), 1, 1, "reserved"),
        (Write(4, 5), 5, 20, "length"),
        (BlockWrite(4, (1, 2)), 3, 18, "length"),
        (BlockWrite(4, (1, 2)), 3, 40, "truncated"),
        (Await(0, 0, True, 0), 2, 2, "reserved"),
        (Patch(0x1D004, 0, 0), 5, 1, "reserved"),
        (Custom(0x83, ()), 1, 4, "length"),
    ],
)
def test_an_operation_that_is_none(operation: Operation, index: int, value: int, rule: str) -> None:
    words = encode([operation])
    words[4 + index] = value
    with pytest.raises(StreamFault) as fault:
        parse(words)
    assert fault.value.rule == rule


def test_a_field_too_large_is_refused() -> None:
    with pytest.raises(StreamFault, match="operation 1"):
        encode([Noop(), Preempt(1 << 24)])


def test_a_listing_names_tiles_and_registers() -> None:
    extra: list[Operation] = [Write(2 << 25 | 3 << 20 | 0x1F010, 1), Noop()]
    lines = listing(encode([*copy(), *extra])).splitlines()
    assert lines[0] == "v0.1, generation 4, 8 columns of 6, 11 operations, 356 bytes"
    told = "\n".join(lines)
    for expected in (
        "(0,0) descriptor 0 = 64 words",
        "(0,0) descriptor 1, word 1 = argument 0 + 0",
        "(0,0) MM2S0 queue = descriptor 1",
        "(0,0) S2MM0 queue = descriptor 0, token",
        "await       (0,0) S2MM0",
        "(2,3) lock 1 = 0x00000001",
    ):
        assert expected in told
    assert len(lines) == 12
    assert descriptor(1) == 0x1D020

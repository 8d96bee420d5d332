"""Rows in the kernels' blocks: each side gets what the other wrote, and nothing else is touched."""

from collections.abc import Iterator

import numpy as np
import pytest

from flm.core.tensor import TensorSpec
from flm.devices.xrt.buffers import Bank
from flm.devices.xrt.memory import NpuBuffer
from flm.devices.xrt.rows import TiledRows
from flm.devices.xrt.states import LaidState
from npu_kernels import fakexrt
from npu_kernels.attention import reference
from npu_kernels.bf16 import rounded, to_bits
from npu_kernels.gated_delta.reference import pack, slices

LANES, HEADS, HELD, WIDTH, CAPACITY = 2, 3, 48, 16, 64
SHAPE = LANES, HEADS, HELD, WIDTH


@pytest.fixture
def machine() -> Iterator[fakexrt.Machine]:
    before = fakexrt.current()
    yield fakexrt.use(fakexrt.Machine())
    fakexrt.use(before)


@pytest.fixture
def bank(machine: fakexrt.Machine) -> Bank:
    return Bank(fakexrt, fakexrt.device(0), fakexrt.bo.flags.host_only, 0x10000)


class Rows:
    """Keys and values with a twin; `device` is what a kernel would find."""

    def __init__(self, bank: Bank) -> None:
        self.buffers = [
            NpuBuffer(TensorSpec(name, SHAPE), np.zeros(SHAPE, np.float32))
            for name in ("key", "value")
        ]
        self.twin = TiledRows(bank, *(buffer.array() for buffer in self.buffers), CAPACITY)
        for which, buffer in enumerate(self.buffers):
            buffer.attach(self.twin, which)

    def device(self, lane: int) -> np.ndarray:
        """Blocks, uint16 [heads, blocks, 32 * width]."""
        span = self.twin.span(lane)
        span.from_device()
        return span.array.view(np.uint16).reshape(HEADS, CAPACITY // 16, 32 * WIDTH).copy()

    def write_as_kernel(self, lane: int, row: int, key: np.ndarray, value: np.ndarray) -> None:
        """[heads, width] each, into the device's copy alone."""
        self.twin.advance(lane, range(row, row + 1))
        blocks = self.device(lane)
        for head in range(HEADS):
            block = blocks[head, row // 16]
            keys, values = (each.copy() for each in reference.rows(block[None], WIDTH))
            keys[row % 16], values[row % 16] = to_bits(key[head]), to_bits(value[head])
            blocks[head, row // 16] = reference.blocks(keys, values)[0]
        span = self.twin.span(lane)
        span.array[:] = blocks.reshape(-1).view(np.uint8)
        span.to_device()
        span.array[:] = 0xEE  # what the host has of it is old until it is synced


def floats(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


def test_kernels_find_the_rows_that_were_pushed_in_their_blocks(bank: Bank) -> None:
    random, rows = np.random.default_rng(0), Rows(bank)
    for buffer in rows.buffers:
        buffer.array()[1] = floats(random, *SHAPE[1:])
        buffer.part(1, 2).to_device(range(5, 37))
    found = rows.device(1)
    for head in range(HEADS):
        keys, values = reference.rows(found[head], WIDTH)
        for got, buffer in zip((keys, values), rows.buffers, strict=True):
            wanted = np.zeros((CAPACITY, WIDTH), np.uint16)
            wanted[5:37] = to_bits(buffer.array()[1, head, 5:37])
            np.testing.assert_array_equal(got, wanted)
    assert not rows.device(0).any()


def test_only_blocks_that_are_asked_for_are_synced(bank: Bank, machine: fakexrt.Machine) -> None:
    rows = Rows(bank)
    block = HEADS * 64 * WIDTH
    before = machine.counts.bytes_synced
    rows.buffers[0].part(0, 1).to_device(range(20, 30))
    assert machine.counts.bytes_synced - before == 2 * block  # read, changed, written
    before = machine.counts.bytes_synced
    rows.buffers[0].part(0, 1).to_host(range(20, 30))
    assert machine.counts.bytes_synced == before  # the host has them


def test_whatever_moves_each_side_has_the_newest(bank: Bank) -> None:
    """Random pushes, appends and pulls, against two arrays that say what they should give."""
    random, rows = np.random.default_rng(1), Rows(bank)
    newest = [np.zeros(SHAPE, np.float32) for _ in rows.buffers]
    for _ in range(300):
        lane, start = int(random.integers(LANES)), int(random.integers(HELD - 1))
        span = range(start, int(random.integers(start + 1, HELD)))
        which = int(random.integers(2))
        buffer = rows.buffers[which]
        match random.integers(3):
            case 0:
                content = rounded(floats(random, HEADS, len(span), WIDTH))
                buffer.array()[lane, :, span.start : span.stop] = content
                buffer.part(lane, lane + 1).to_device(span)
                newest[which][lane, :, span.start : span.stop] = content
            case 1:
                both = [rounded(floats(random, HEADS, WIDTH)) for _ in range(2)]
                rows.write_as_kernel(lane, start, *both)
                for array, content in zip(newest, both, strict=True):
                    array[lane, :, start] = content
            case _:
                buffer.part(lane, lane + 1).to_host(span)
                found = buffer.array()[lane, :, span.start : span.stop]
                np.testing.assert_array_equal(found, newest[which][lane, :, span.start : span.stop])
    for lane in range(LANES):
        found = rows.device(lane)
        for head in range(HEADS):
            for got, wanted in zip(reference.rows(found[head], WIDTH), newest, strict=True):
                np.testing.assert_array_equal(got[:HELD], to_bits(wanted[lane, head]))


def test_rows_pushed_before_the_first_pass_reach_the_device_with_it(bank: Bank) -> None:
    buffers = [
        NpuBuffer(TensorSpec(name, SHAPE), np.ones(SHAPE, np.float32)) for name in ("k", "v")
    ]
    buffers[0].part(1, 2).to_device(range(7))
    twin = TiledRows(bank, *(buffer.array() for buffer in buffers), CAPACITY)
    for which, buffer in enumerate(buffers):
        buffer.attach(twin, which)
    twin.span(1).from_device()
    blocks = twin.span(1).array.view(np.uint16).reshape(HEADS, -1, 32 * WIDTH)
    keys, values = reference.rows(blocks[0], WIDTH)
    assert keys[:7].all()
    assert not keys[7:].any()
    assert not values.any()


def test_a_state_lies_as_its_kernel_says_and_comes_back(bank: Bank) -> None:
    random, shape = np.random.default_rng(2), (LANES, 2, 32, 32)
    buffer = NpuBuffer(TensorSpec("state", shape), floats(random, *shape))
    wanted = buffer.array().copy()
    twin = LaidState(bank, buffer.array(), slices, wanted[0].nbytes)
    buffer.attach(twin, 0)
    buffer.to_device()
    span = twin.span(1)
    np.testing.assert_array_equal(span.array.view(np.float32), pack(wanted[1]).reshape(-1))
    twin.advance(1, range(1))
    span.array.view(np.float32)[:] *= 2
    span.to_device()
    buffer.to_host()
    np.testing.assert_array_equal(buffer.array()[1], 2 * wanted[1])
    np.testing.assert_array_equal(buffer.array()[0], wanted[0])
